"""The commands as a user calls them, as far as they go without a real model."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from dspark.cli.bench_beside import Schedule, read_others
from dspark.cli.main import main
from dspark.errors import ConfigurationError
from dspark.evaluation.offline.results import results_text
from dspark.rounds.planner import FixedPlanner
from tests.unit.evaluation.rounds_of_blocks import full_pass, results, rounds


@pytest.mark.parametrize("name", ["speed", "lossless", "overhead", "scheduler", "pareto", "training"])
def test_every_benchmark_explains_itself(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["bench", name, "--help"])
    assert "--json" in capsys.readouterr().out


def test_a_drafter_that_is_none_is_one_sentence(tmp_path, capsys):
    for command in (["bench", "speed"], ["evaluate"], ["calibrate"]):
        target = str(write_target(tmp_path))
        assert main([*command, "--target", target, "--drafter", str(tmp_path / "none")]) == 78
        assert "holds no config.json; name a drafter checkpoint" in capsys.readouterr().err


def test_a_drafter_beside_another_needs_a_name_of_its_own(tmp_path, capsys):
    target, other = write_target(tmp_path), tmp_path / "plain"
    write_drafter(other)
    assert main(["bench", "speed", "--target", str(target), "--beside", str(other)]) == 78
    assert f"--beside {other}: another system is called plain; rename it" in capsys.readouterr().err
    assert main(["bench", "speed", "--target", str(target), "--beside", "prompt-lookup"]) == 78
    assert "--beside compares with --drafter; name that, too" in capsys.readouterr().err


def others(*texts):
    found = read_others(argparse.Namespace(beside=list(texts), policy="early-stop"), ["plain", "dspark"])
    return [(one.name, one.drafter, one.schedule) for one in found]


def test_a_drafter_beside_another_may_be_scheduled_by_a_policy_of_its_own(tmp_path):
    path = tmp_path / "dflash"
    write_drafter(path)
    assert others(str(path), f"{path}@fixed", f"{path}@fixed:3", f"{path}@auto") == [
        ("dflash", path, Schedule("early-stop")),
        ("dflash@fixed", path, Schedule("fixed")),
        ("dflash@fixed:3", path, Schedule("fixed", 3)),
        ("dflash@auto", path, Schedule("auto")),
    ]
    planner = Schedule("fixed", 3).planner()
    assert isinstance(planner, FixedPlanner)
    assert planner.plan(None, [np.ones(7), np.ones(2)]) == [3, 2]


def test_a_drafter_whose_directory_has_an_at_sign_is_no_policy(tmp_path):
    path = tmp_path / "run@fixed"
    write_drafter(path)
    assert others(str(path)) == [("run@fixed", path, Schedule("early-stop"))]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("never", "'never' is no policy; choose auto, early-stop,"),
        ("off", "'off' is no policy"),
        ("fixed:0", "a number belongs to fixed, as in fixed:3, and must be at least 1"),
        ("fixed:x", "a number belongs to fixed"),
        ("auto:3", "a number belongs to fixed"),
    ],
)
def test_a_policy_of_a_drafter_beside_another_that_is_none_is_refused(how, message, tmp_path):
    write_drafter(tmp_path / "dflash")
    with pytest.raises(ConfigurationError, match=message):
        others(f"{tmp_path / 'dflash'}@{how}")


@pytest.mark.parametrize("command", ["evaluate", "calibrate"])
def test_what_needs_a_drafter_says_so(command, tmp_path, capsys):
    assert main([command, "--target", str(write_target(tmp_path))]) == 78
    assert f"dspark {command}: there is no drafter for this target" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"), [("--tokens", "0"), ("--repeats", "x"), ("--streams", "-1"), ("--threads", "0")]
)
def test_counts_must_be_positive(option, value, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "speed", option, value])
    assert "is not a whole number of at least 1" in capsys.readouterr().err


def test_too_few_samples_to_catch_the_negative_controls_are_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "lossless", "--samples", "999"])
    assert "is not a whole number of at least 1000" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "warm"])
def test_a_temperature_must_be_a_number_of_at_least_zero(value, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", "--temperature", value])
    assert "is not a number of at least 0" in capsys.readouterr().err


def test_the_figures_of_an_evaluation_are_computed_anew_without_a_model(tmp_path, capsys):
    logits = [[2.0, 1.0, 0.5, 0.1], [0.3, 0.2, 0.1, 0.0]]
    stored = results([full_pass(rounds((0, 1, 4, 3, 4), (2, 1, 4, 0, 1), logits=logits))])
    (tmp_path / "rounds.json").write_text(results_text(stored))
    report, figures = tmp_path / "report", tmp_path / "figures.json"
    command = ["evaluate", "--from", str(tmp_path / "rounds.json"), "--report", str(report)]
    assert main([*command, "--json", str(figures), "--thresholds", "0.5", "0"]) == 0
    assert "gsm8k" in capsys.readouterr().out
    assert sorted(one.name for one in report.iterdir()) == [
        "metrics.json",
        "report.html",
        "report.md",
        "rounds.json",
    ]
    (whole,) = [one for one in json.loads(figures.read_text())["figures"]["groups"] if one["level"] == "all"]
    assert whole["full"]["accept_len"] == 2.5
    assert (report / "rounds.json").read_text() == (tmp_path / "rounds.json").read_text()


def test_a_threshold_is_a_probability_and_two_sources_of_prompts_are_one_too_many(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", "--thresholds", "1"])
    assert "is not a number of at least 0 and below 1" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", "--temperature", "1", "--temperatures", "0", "1"])


def write_drafter(path: Path) -> None:
    """A directory that passes for a drafter until it is read."""
    path.mkdir()
    (path / "config.json").write_text("{}")


def write_target(directory: Path) -> Path:
    """A directory that passes for a target until its weights are read."""
    target = directory / "target"
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text('{"model_type": "llama"}')
    (target / "model.safetensors").write_bytes(b"")
    return target
