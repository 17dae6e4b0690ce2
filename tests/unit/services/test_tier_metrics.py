"""What the scheduler's metrics say of tiers and promises."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from dspark.decoding.service import Service, ServiceTier, Sla
from services.scheduler import metrics
from tests.fakes import FakeVerifier, greedy_request
from tests.unit.rounds.loop_rig import Rig


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"dspark_scheduler_{name}", labels)


async def test_gauges_show_requests_by_tier_and_how_late_they_are() -> None:
    rig = Rig(verifier=FakeVerifier())
    metrics.expose_loop(lambda: rig.loop.stats)
    promised = Service(ServiceTier.FLEX, Sla(ttft_s=1.0))
    async with rig.running() as loop:
        stream = loop.submit(replace(greedy_request("a"), service=promised))
        rig.clock.time_s += 3.0
        tiers = {tier: sample("tier_requests", service_tier=tier.value) for tier in ServiceTier}
        assert tiers == {ServiceTier.PRIORITY: 0, ServiceTier.DEFAULT: 0, ServiceTier.FLEX: 1}
        assert sample("late_requests") == 1
        assert sample("most_late_seconds") == pytest.approx(2.0)
        await stream.aclose()
