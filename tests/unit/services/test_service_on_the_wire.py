"""Tier and promise of a request between gateway and scheduler."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.api.v1 import scheduler_pb2
from dspark.decoding.service import Service, ServiceTier, Sla
from dspark.errors import InvalidRequestError
from services.scheduler.wire import request_from_pb, request_to_pb
from tests.fakes import greedy_request

PROMISES = st.none() | st.floats(1e-6, 1e6)
SERVICES = st.builds(Service, st.sampled_from(ServiceTier), st.builds(Sla, PROMISES, PROMISES))


@given(SERVICES)
@settings(deadline=None)
def test_tier_and_promise_survive_the_wire(service: Service) -> None:
    sent = replace(greedy_request("a"), service=service)
    data = request_to_pb(sent).SerializeToString()
    assert request_from_pb(scheduler_pb2.GenerateRequest.FromString(data)) == sent


def test_a_gateway_that_names_neither_gets_the_default_tier_and_no_promise() -> None:
    message = request_to_pb(replace(greedy_request("a"), service=Service(ServiceTier.FLEX)))
    message.ClearField("service")
    assert request_from_pb(message).service == Service()


@pytest.mark.parametrize("name", ["tokens_per_s", "ttft_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_promise_that_is_not_above_0_is_refused(name: str, value: float) -> None:
    message = request_to_pb(greedy_request("a"))
    setattr(message.service, name, value)
    with pytest.raises(InvalidRequestError, match="promise more than 0") as caught:
        request_from_pb(message)
    assert caught.value.field == f"service.{name}"


def test_a_tier_of_another_version_is_refused() -> None:
    message = request_to_pb(greedy_request("a"))
    message.service.tier = 9  # type: ignore[assignment]
    with pytest.raises(InvalidRequestError, match="tier 9 is unknown") as caught:
        request_from_pb(message)
    assert caught.value.field == "service.tier"
