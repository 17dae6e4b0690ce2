"""Where not all can be served alike, those that were promised a speed reach it more often with weights."""

from __future__ import annotations

import pytest

from dspark.decoding.service import Service, ServiceTier, Sla
from dspark.evaluation.simulation.curves import Machine
from dspark.evaluation.simulation.luck import Luck
from dspark.evaluation.simulation.runner import Observed, Scenario, simulate
from dspark.evaluation.simulation.trace import TraceRequest
from tests.fakes import step_costs

NUM_STREAMS, OUTPUT_LEN, PROMISED_PER_S = 16, 600, 190.0
PROMISED = range(0, NUM_STREAMS, 4)
# Beside one row a stream, sixteen drafts are cheap and the next one is not.
BUSY = Machine("busy", "test", step_costs((1, 0.010), (32, 0.011), (33, 0.030), (256, 0.200)))
LUCK = Luck([TraceRequest(0.0, 8, OUTPUT_LEN)] * NUM_STREAMS, seed=11, gamma=4)


def served(policy: str, services: dict[int, Service]) -> Observed:
    return simulate(Scenario(BUSY, LUCK, services=services), policy, None)


def speeds(observed: Observed) -> dict[int, float]:
    """Tokens per second behind the first one, by request."""
    return {
        one.index: (len(one.token_ids) - 1) / (one.deltas[-1].at_s - one.deltas[0].at_s)
        for one in observed.served
    }


def num_kept(observed: Observed) -> int:
    found = speeds(observed)
    return sum(found[index] >= PROMISED_PER_S for index in PROMISED)


@pytest.mark.parametrize("policy", ["early-stop", "barrier"])
def test_promised_speeds_are_reached_more_often_with_weights_than_without(policy: str) -> None:
    # of the same tier as the others
    promised = Service(ServiceTier.DEFAULT, Sla(tokens_per_s=PROMISED_PER_S))
    alike, weighed = served(policy, {}), served(policy, dict.fromkeys(PROMISED, promised))
    assert num_kept(weighed) >= num_kept(alike) + 3
    # and the others go on: they lose drafts, never their place in a round
    assert min(speeds(weighed).values()) > 0.9 * min(speeds(alike).values())
    for first, second in zip(alike.served, weighed.served, strict=True):
        assert first.token_ids == second.token_ids


@pytest.mark.parametrize("policy", ["early-stop", "barrier"])
def test_a_flex_request_yields_to_the_others_and_still_ends(policy: str) -> None:
    alike = speeds(served(policy, {}))
    found = speeds(served(policy, dict.fromkeys(PROMISED, Service(ServiceTier.FLEX))))
    flex, others = sum(found[index] for index in PROMISED), sum(found.values())
    assert flex < sum(alike[index] for index in PROMISED)
    assert others - flex > sum(alike.values()) - sum(alike[index] for index in PROMISED)
    assert min(found.values()) > 0.0
