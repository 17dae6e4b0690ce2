"""Tiers and promises: what weighs how much, what begins when, what gives way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.decoding.service import Service, ServiceTier, Sla
from dspark.scheduling.ranking import MAX_WEIGHT
from dspark.scheduling.weights import (
    LONGEST_SLACK_S,
    deadline_s,
    first_token_late_s,
    speed_late_s,
    standing,
    weight_of,
)

tiers = st.sampled_from(ServiceTier)
services = st.builds(
    Service, tiers, st.builds(Sla, st.none() | st.floats(1e-3, 1e6), st.none() | st.floats(1e-3, 1e9))
)


def test_tiers_stand_in_the_order_of_their_names():
    weights = [weight_of(Service(tier), 0, 100.0) for tier in ServiceTier]
    assert weights == sorted(set(weights), reverse=True)
    assert weights[1] == 1.0
    deadlines = [deadline_s(Service(tier), 10.0) for tier in ServiceTier]
    assert deadlines == sorted(set(deadlines))
    assert [standing(tier) for tier in ServiceTier] == [0, 1, 2]


def test_a_request_is_late_by_what_it_should_have_committed_since_its_first_token():
    promised = Sla(tokens_per_s=20.0)
    late = [speed_late_s(promised, 40, seconds) for seconds in (0.0, 1.0, 2.0, 2.5, 3.0, 60.0)]
    assert late == pytest.approx([0.0, 0.0, 0.0, 0.5, 1.0, 58.0])
    assert speed_late_s(Sla(), 0, 1e6) == 0.0


def test_a_request_weighs_more_the_further_it_is_behind_its_promise():
    promised = Service(ServiceTier.DEFAULT, Sla(tokens_per_s=20.0))
    # at the speed aimed at, a tenth above the promise, 44 tokens take two seconds
    weights = [weight_of(promised, 44, seconds) for seconds in (0.0, 2.0, 2.125, 2.25, 2.5, 2.75, 60.0)]
    assert weights == pytest.approx([1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 4.0])


def test_one_that_has_caught_up_weighs_what_its_tier_does():
    promised = Service(ServiceTier.FLEX, Sla(tokens_per_s=20.0))
    assert weight_of(promised, 10, 5.0) > weight_of(promised, 110, 5.0) == 0.5


def test_just_keeping_its_promise_does_not_lighten_a_request():
    promised = Service(ServiceTier.DEFAULT, Sla(tokens_per_s=20.0))
    weights = [weight_of(promised, 20 * seconds, float(seconds)) for seconds in range(6)]
    assert weights == sorted(set(weights))


@given(service=services, tokens=st.integers(0, 10**6), seconds=st.floats(0, 1e6))
def test_every_weight_can_be_ranked(service, tokens, seconds):
    assert 0.0 < weight_of(service, tokens, seconds) <= MAX_WEIGHT


@given(service=services, other=services, arrival_s=st.floats(0.0, 1e4), later_s=st.floats(0.01, 1e4))
def test_whoever_comes_after_the_longest_slack_is_served_later(service, other, arrival_s, later_s):
    begins_s = deadline_s(service, arrival_s)
    assert arrival_s < begins_s <= arrival_s + LONGEST_SLACK_S
    assert begins_s < deadline_s(other, arrival_s + LONGEST_SLACK_S + later_s)


def test_a_promised_first_token_sets_the_deadline_and_says_when_it_is_late():
    promised = Sla(ttft_s=0.2)
    assert deadline_s(Service(ServiceTier.FLEX, promised), 7.0) == pytest.approx(7.2)
    assert [first_token_late_s(promised, waited_s) for waited_s in (0.1, 0.5)] == pytest.approx([0.0, 0.3])
    assert first_token_late_s(Sla(), 1e6) == 0.0


def test_each_time_a_request_gave_way_it_stands_one_tier_higher():
    assert [standing(ServiceTier.FLEX, times) for times in range(5)] == [2, 1, 0, 0, 0]
    assert standing(ServiceTier.PRIORITY, 3) == 0
