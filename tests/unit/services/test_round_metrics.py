"""What a round adds to the scheduler's counters."""

from __future__ import annotations

from prometheus_client import REGISTRY

from dspark.rounds.stats import RequestRound, RoundReport
from dspark.scheduling.surface import StepLoad
from services.scheduler.metrics import RoundMetrics


def accepted(made_by: str) -> float:
    return REGISTRY.get_sample_value("dspark_round_accepted_drafts_total", {"made_by": made_by}) or 0.0


def test_accepted_drafts_are_counted_by_who_made_them() -> None:
    before = {name: accepted(name) for name in ("model", "copy")}
    verified = [RequestRound("a", 7, 3, 2, 3), RequestRound("b", 15, 15, 11, 12, is_copied=True)]
    RoundMetrics().on_round(RoundReport(verified, 0, StepLoad(20), 0.001, 0.0001, 0.02, 0.019))
    assert accepted("model") - before["model"] == 2
    assert accepted("copy") - before["copy"] == 11
