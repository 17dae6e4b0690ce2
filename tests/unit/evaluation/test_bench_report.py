import json

import pytest

from dspark.cli.bench_report import Report, finish, print_table
from dspark.errors import ConfigurationError
from dspark.evaluation.verdict import Check, all_met, at_least, at_most

MET, MISSED = at_least("fast", 2.0, 1.5), at_most("slow", 2.0, 1.5)


def report(*checks):
    return Report(
        "speed", {"dtype": "bfloat16"}, {"a": 1}, ratios={"a_vs_b": 2.0}, checks=checks, notes=["n"]
    )


def test_bounds_include_themselves():
    assert MET.is_met
    assert not MISSED.is_met
    assert at_least("x", 1.5, 1.5).is_met
    assert at_most("x", 1.5, 1.5).is_met
    assert not all_met([MET, MISSED])


def test_a_missed_check_is_the_exit_code_and_stands_in_the_report(tmp_path, capsys):
    path = tmp_path / "deep" / "speed.json"
    assert finish(report(MET, MISSED), path) == 1
    document = json.loads(path.read_text())
    assert document["ratios"] == {"a_vs_b": 2.0}
    assert document["checks"][1] == {"name": "slow", "found": "2.000", "wanted": "<= 1.5", "is_met": False}
    assert not document["is_met"]
    printed = capsys.readouterr().out
    assert "MISSED" in printed
    assert "note: n" in printed


def test_a_report_says_where_its_figures_come_from(tmp_path, capsys):
    path = tmp_path / "speed.json"
    assert finish(report(MET), path) == 0
    document = json.loads(path.read_text())
    assert document["name"] == "speed"
    assert document["command"].startswith("dspark")
    assert document["hardware"]["num_cores"] >= 1
    assert document["hardware"]["cpu_model"]
    assert {"dspark", "python", "torch", "transformers"} <= document["versions"].keys()
    assert {"date", "commit", "setup", "figures", "thread_variables", "load_average"} <= document.keys()


def test_without_a_place_the_report_goes_to_the_results_of_the_checkout_or_nowhere(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert finish(report(MET), None) == 0
    assert "written to" not in capsys.readouterr().out
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    finish(report(MET), None)
    assert json.loads((tmp_path / "benchmarks" / "results" / "speed.json").read_text())["is_met"]


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"--json .* cannot be written"):
        finish(report(MET), tmp_path / "file" / "speed.json")


def test_tables_align_figures_to_the_right(capsys):
    print_table(["name", "x"], [["a", "1.0"], ["long name", "10.0"]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[3:] == ["  a           1.0", "  long name  10.0"]


def test_a_check_is_written_as_it_reads():
    assert Check("n", "f", "w", True).as_dict() == {"name": "n", "found": "f", "wanted": "w", "is_met": True}
