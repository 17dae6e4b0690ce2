"""What the scheduler says of its policy and of the cohorts in flight."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import REGISTRY

from dspark.errors import ConfigurationError
from services.runtime.settings import read_settings
from services.scheduler import metrics
from services.scheduler.settings import SchedulerSettings
from tests.fakes import greedy_request
from tests.unit.rounds.loop_rig import Rig, read


async def test_a_gauge_shows_the_cohorts_that_are_in_flight() -> None:
    rig = Rig(cohorts="2")
    metrics.expose_loop(lambda: rig.loop.stats)
    assert REGISTRY.get_sample_value("dspark_scheduler_cohorts") == 1
    async with rig.running() as loop:
        streams = [loop.submit(greedy_request(name, max_new_tokens=60)) for name in "ab"]
        readers = asyncio.gather(*map(read, streams))
        await rig.settle()
        assert REGISTRY.get_sample_value("dspark_scheduler_cohorts") == 2
        await readers


def test_the_policy_is_a_label() -> None:
    metrics.expose_policy("barrier", "auto")
    labels = {"policy": "barrier", "cohorts": "auto"}
    assert REGISTRY.get_sample_value("dspark_scheduler_policy_info", labels) == 1


@pytest.mark.parametrize("cohorts", ["auto", "1", "2"])
def test_the_number_of_cohorts_is_a_setting(cohorts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDULER_LISTEN", "127.0.0.1:1")
    monkeypatch.setenv("SCHEDULER_VERIFIER_ADDRESS", "127.0.0.1:2")
    assert read_settings(SchedulerSettings).cohorts == "auto"
    monkeypatch.setenv("SCHEDULER_COHORTS", cohorts)
    assert read_settings(SchedulerSettings).cohorts == cohorts
    monkeypatch.setenv("SCHEDULER_COHORTS", "3")
    with pytest.raises(ConfigurationError, match="SCHEDULER_COHORTS"):
        read_settings(SchedulerSettings)
