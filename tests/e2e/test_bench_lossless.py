"""The half of `dspark bench lossless` that needs no real model, as a user calls it."""

from __future__ import annotations

import json

import pytest

from dspark.cli.main import main


# A minute on a core of its own.
@pytest.mark.timeout(240)
def test_the_tiny_half_of_lossless_runs_and_its_verdict_is_the_exit_code(tmp_path, capsys):
    path = tmp_path / "lossless.json"
    assert main(["bench", "lossless", "--tiny-only", "--samples", "1000", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    caught = [check for check in document["checks"] if "must be caught" in check["name"]]
    assert len(caught) == 8
    assert document["figures"]["cases"]["tiny: retrospective x rejection"] == "refused"
    assert all(check["is_met"] for check in document["checks"])
