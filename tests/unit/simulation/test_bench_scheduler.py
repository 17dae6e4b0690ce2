"""`dspark bench scheduler` as a user calls it."""

from __future__ import annotations

import json

import pytest

from dspark.cli.main import main
from dspark.rounds.policies import POLICIES

SMALL = ["bench", "scheduler", "--simulate", "--requests", "4", "--concurrency", "1,3"]
LINE = '{"arrival_s": 0, "prompt_len": 3, "output_len": 40}\n'


def test_a_study_prints_a_table_per_load_and_writes_its_figures(tmp_path, capsys):
    path = tmp_path / "study.json"
    code = main(
        [*SMALL, "--policies", "off,fixed,early-stop", "--curve", "memory-bound", "--json", str(path)]
    )
    document = json.loads(path.read_text())
    assert code == (0 if document["is_met"] else 1)
    assert list(document["figures"]) == ["1 streams", "3 streams"]
    assert list(document["figures"]["1 streams"]) == ["off", "fixed", "early-stop"]
    assert document["figures"]["1 streams"]["fixed"]["num_requests"] >= 4
    assert document["ratios"].keys() >= {"early-stop vs better of off and fixed, 3 streams"}
    assert document["setup"]["machine"]["name"] == "memory-bound"
    assert {"hardware", "command", "commit"} <= document.keys()
    printed = capsys.readouterr().out
    assert "3 streams" in printed
    assert ">= 0.98" in printed


def test_a_missed_bar_is_the_exit_code(tmp_path, capsys):
    # Drafts that cost as much as five steps: the guard needs some rounds to give them up.
    curve = tmp_path / "dear.json"
    curve.write_text('{"step_cost": [[1, 0.01], [64, 0.011]], "draft_cost": [[1, 0.05]]}')
    path = tmp_path / "study.json"
    assert (
        main([*SMALL, "--policies", "off,fixed,early-stop", "--curve", str(curve), "--json", str(path)]) == 1
    )
    assert "MISSED" in capsys.readouterr().out


def test_without_a_baseline_there_is_no_verdict_and_that_is_said(tmp_path, capsys):
    assert main([*SMALL, "--policies", "threshold", "--json", str(tmp_path / "study.json")]) == 0
    assert "no verdict: it takes the policies off, fixed" in capsys.readouterr().out


def test_cohorts_are_compared_and_a_measured_number_is_held_against_the_better_one(tmp_path, capsys):
    path = tmp_path / "study.json"
    options = ["--policies", "fixed", "--curve", "memory-bound", "--cohorts", "1,2,auto", "--separate"]
    assert main([*SMALL, *options, "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    figures = document["figures"]["3 streams"]
    assert list(figures) == ["fixed", "fixed, 2 cohorts", "fixed, auto cohorts"]
    assert figures["fixed, 2 cohorts"]["tokens_per_s"] < 0.8 * figures["fixed"]["tokens_per_s"]
    assert document["ratios"]["fixed, auto cohorts vs better of 1 and 2, 3 streams"] == 1.0
    assert document["setup"]["separate hardware"]


def test_a_saved_trace_is_one_that_can_be_replayed(tmp_path, capsys):
    trace, report = str(tmp_path / "trace.jsonl"), str(tmp_path / "study.json")
    options = ["bench", "scheduler", "--simulate", "--policies", "barrier", "--json", report]
    main([*options, "--requests", "5", "--rate", "2", "--save-trace", trace])
    made = json.loads((tmp_path / "study.json").read_text())["figures"]["2 requests/s"]
    main([*options, "--trace", trace])
    replayed = json.loads((tmp_path / "study.json").read_text())["figures"]["as recorded"]
    made["barrier"].pop("items_per_real_s"), replayed["barrier"].pop("items_per_real_s")
    # The clock of a replay starts with the first arrival.
    assert replayed["barrier"]["mean_verified"] == made["barrier"]["mean_verified"]
    assert replayed["barrier"]["ttft_ms"] == pytest.approx(made["barrier"]["ttft_ms"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--concurrency", "1,0"], "'0' is not a whole number of at least 1"),
        (["--concurrency", ""], "'' is not a whole number of at least 1"),
        (["--rate", "0"], "'0' is not a number above 0"),
        (["--rate", "1", "--concurrency", "1"], "not allowed with argument"),
        (["--policies", "off,clever"], "'clever' is none of auto, early-stop, barrier"),
        (["--cohorts", "1,3"], "'3' is none of auto, 1, 2"),
        (["--gamma", "65"], "'65' is more than 64"),
        (["--seed", "-1"], "'-1' is not a whole number from 0"),
        (["--seed", "4294967296"], "is not a whole number from 0"),
        (["--threshold", "1.5"], "'1.5' is not a number from 0 to 1"),
        (["--confidence-offset", "nan"], "'nan' is not a finite number"),
        (["--requests", "x"], "'x' is not a whole number of at least 1"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(options, sentence, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "scheduler", "--simulate", *options])
    error = capsys.readouterr().err
    assert sentence in error
    assert options[-2] in error


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--simulate", "--curve", "abacus"], "--curve abacus is no file and none of h100-like, cpu-like"),
        (["--curve", "abacus"], "--curve abacus is no file and none of h100-like, cpu-like"),
        (["--simulate", "--trace", "TRACE", "--rate", "1"], "--rate is about a synthetic trace; leave it or"),
        (["--simulate", "--trace", "TRACE", "--difficulty", "1"], "--difficulty is about a synthetic trace"),
        (["--simulate", "--trace", "TRACE", "--save-trace", "x"], "--save-trace is about a synthetic trace"),
        (["--simulate", "--trace", "TRACE", "--requests", "2"], "--requests is 2 and --trace"),
        (["--simulate", "--trace", "nowhere"], "--trace nowhere cannot be read"),
        (["--simulate", "--trace", "LONG"], "holds a request of 2000003 tokens; shorten it to"),
        (["--simulate", "--trace", "EMPTY"], "holds no request; give it one JSON object per line"),
        (["--simulate", "--rate", "1,2", "--save-trace", "x"], "is for one trace; give one --rate only"),
        (["--simulate", "--save-trace", "nowhere/x"], "--save-trace nowhere/x cannot be written"),
        (["--simulate", "--repeats", "3"], "--repeats counts plans that are timed; leave it out"),
        (
            ["--concurrency", "4", "--threshold", "0.5"],
            "--concurrency, --threshold: shapes a simulation; add",
        ),
        (["--cohorts", "2", "--separate"], "--cohorts, --separate: shapes a simulation; add"),
        (["--policies", "mtp-1"], "--policies mtp-1 is for a simulation; add --simulate"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_with_the_mend(options, sentence, tmp_path, capsys):
    texts = {"TRACE": LINE, "LONG": LINE.replace("40", "2000000"), "EMPTY": "\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    named = [str(tmp_path / option) if option in texts else option for option in options]
    assert main(["bench", "scheduler", *named]) == 78
    assert sentence in capsys.readouterr().err


def test_planning_is_timed_for_each_policy_and_held_against_its_bar(tmp_path, capsys):
    path = tmp_path / "scheduler.json"
    code = main(["bench", "scheduler", "--repeats", "5", "--json", str(path)])
    document = json.loads(path.read_text())
    assert document["setup"]["requests"] == 256
    assert set(document["figures"]) == set(POLICIES)
    for policy, figures in document["figures"].items():
        assert 0.0 < figures["quiet_us"] <= figures["median_us"] <= figures["p99_us"], policy
    assert document["figures"]["fixed"]["mean_verified"] == 7.0
    assert document["figures"]["early-stop"]["mean_verified"] > 6.0  # the longest plan, not the shortest
    assert {check["wanted"] for check in document["checks"]} == {"<= 150"}
    assert code == (0 if document["is_met"] else 1)
