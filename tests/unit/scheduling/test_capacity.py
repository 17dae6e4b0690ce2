"""The capacity curve between, below and beyond its points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.errors import ConfigurationError
from dspark.scheduling.capacity import CapacityCurve


def test_it_is_linear_between_points_flat_below_and_goes_on_beyond():
    curve = CapacityCurve.from_points([(4, 2.0), (8, 4.0), (16, 5.0)])
    assert curve.step_s(6) == pytest.approx(3.0)
    assert curve.step_s(1) == pytest.approx(2.0)
    assert curve.step_s(32) == pytest.approx(7.0)


def test_a_draft_cost_slows_every_round_alike():
    curve = CapacityCurve.from_points([(1, 0.3), (2, 0.4)], draft_s=0.1)
    assert curve.steps_per_second(1) == pytest.approx(2.5)
    assert curve.steps_per_second(2) == pytest.approx(2.0)


def test_beside_a_prompt_drafts_cost_what_they_add_to_the_long_step():
    curve = CapacityCurve.from_points([(1, 1.0), (4, 1.3), (8, 2.0), (12, 6.0)], draft_s=0.5)
    beside = curve.beside_prompt(2, 6)
    assert beside.round_s(2) == pytest.approx(0.5 + curve.step_s(2)), "the prompt itself is not theirs to pay"
    assert beside.round_s(4) - beside.round_s(2) == pytest.approx(curve.step_s(10) - curve.step_s(8))
    assert beside.rounds_s(2, 5) == pytest.approx([beside.round_s(size) for size in range(2, 7)])
    assert curve.beside_prompt(2, 0) is curve


def test_where_prompts_queue_up_their_tokens_are_worth_something_and_cost_their_seconds():
    curve = CapacityCurve.from_points([(1, 1.0), (4, 1.3), (8, 2.0), (12, 6.0)], draft_s=0.5)
    queued = curve.beside_prompt(2, 6, value=1.0)
    assert queued.prompt_gain == 6.0
    assert queued.round_s(2) == pytest.approx(0.5 + curve.step_s(8))
    half = curve.beside_prompt(2, 6, value=0.5)
    assert half.prompt_gain == 3.0
    assert half.round_s(3) == pytest.approx((queued.round_s(3) + curve.beside_prompt(2, 6).round_s(3)) / 2)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.floats(1e-4, 10.0)), min_size=1, max_size=12),
)
def test_a_larger_step_is_never_cheaper_however_noisy_the_points(points):
    seconds = CapacityCurve.from_points(points).steps_s(np.arange(1, 400))
    assert (np.diff(seconds) >= -1e-12).all()


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=12))
def test_smoothing_keeps_the_sum_and_points_that_already_rise(values):
    points = list(enumerate(values, start=1))
    assert sum(CapacityCurve.from_points(points).seconds) == pytest.approx(sum(values))
    rising = list(enumerate(sorted(values), start=1))
    assert CapacityCurve.from_points(rising).seconds == pytest.approx(sorted(values))


def test_repeated_measurements_are_averaged():
    assert CapacityCurve.from_points([(4, 1.0), (2, 0.5), (4, 3.0)]).seconds == (0.5, 2.0)


@pytest.mark.parametrize("points", [[], [(0, 1.0)], [(1, 0.0)], [(1, float("nan"))]])
def test_points_that_measure_nothing_are_refused_by_name(points):
    with pytest.raises(ConfigurationError, match="step_cost"):
        CapacityCurve.from_points(points)


@pytest.mark.parametrize("points", [[(8, 1.0)], [(1, 1.0), (8, 1.0)], [(1, 2.0), (8, 1.0)]])
def test_a_flat_curve_cannot_serve_an_adaptive_policy(points):
    with pytest.raises(ConfigurationError, match="flat"):
        CapacityCurve.from_points(points).check_rises()


def test_beside_a_draft_a_step_lasts_at_least_as_long_as_the_draft():
    curve = CapacityCurve.from_points([(1, 0.010), (11, 0.020), (21, 0.040)], draft_s=0.003)
    assert curve.beside_draft(0.005).round_s(6) == curve.step_s(6)
    beside = curve.beside_draft(0.0185)
    for size in (1, 5, 9, 10, 11, 15, 40):
        assert beside.round_s(size) == pytest.approx(max(0.0185, curve.step_s(size)))
    assert beside.rounds_s(8, 4) == pytest.approx(
        [max(0.0185, curve.step_s(size)) for size in (8, 9, 10, 11)]
    )
    assert curve.beside_draft(0.0185).step_s(1) == 0.0185
    assert curve.step_s(1) == 0.010, "the curve itself is as it was"
