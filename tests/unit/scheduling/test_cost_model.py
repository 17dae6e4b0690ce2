"""Costs that follow what rounds really took."""

from __future__ import annotations

import numpy as np
import pytest

from dspark.errors import ConfigurationError
from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.cost_model import CostModel

MEASURED = [(1, 0.010), (4, 0.012), (16, 0.030), (64, 0.100)]


def trained(true_s, sizes, *, rounds=600, noise=0.0, seed=0):
    rng, model = np.random.default_rng(seed), CostModel(MEASURED)
    for _ in range(rounds):
        size = int(rng.choice(sizes))
        model.observe(size, true_s(size) * float(np.exp(noise * rng.standard_normal())))
    return model


def test_before_any_round_it_is_what_was_measured():
    assert CostModel(MEASURED).curve == CapacityCurve.from_points(MEASURED)
    with pytest.raises(ConfigurationError, match="step_cost"):
        CostModel([])


def test_it_finds_costs_that_were_measured_wrong():
    truth = CapacityCurve.from_points([(1, 0.012), (4, 0.020), (16, 0.028), (64, 0.150)])
    model = trained(truth.step_s, range(1, 65), rounds=20_000)
    found = [model.curve.step_s(size) / truth.step_s(size) for size in (1, 4, 10, 16, 40, 64)]
    assert found == pytest.approx([1.0] * 6, abs=0.1)
    assert model.error < 0.1


def test_a_machine_that_became_slower_is_slower_at_sizes_that_were_not_seen_too():
    measured = CapacityCurve.from_points(MEASURED)
    model = trained(lambda size: 1.3 * measured.step_s(size), (3, 4, 5), rounds=1500)
    assert model.curve.step_s(4) / measured.step_s(4) == pytest.approx(1.3, abs=0.03)
    assert model.curve.step_s(64) / measured.step_s(64) > 1.02


def test_noise_of_a_fifth_leaves_an_error_of_the_curve_of_a_few_percent():
    measured = CapacityCurve.from_points(MEASURED)
    # Standard error of the mean of some 20 rounds of 20 % noise is 4.5 %; three of them, one time in 370.
    model = trained(measured.step_s, (4,), noise=0.2)
    assert model.curve.step_s(4) / measured.step_s(4) == pytest.approx(1.0, abs=0.14)
    assert 0.1 < model.error < 0.25


def test_one_interrupted_round_moves_little():
    measured, model = CapacityCurve.from_points(MEASURED), CostModel(MEASURED)
    for number in range(32):
        model.observe(4, 100 * measured.step_s(4) if number == 16 else measured.step_s(4))
    assert model.curve.step_s(4) / measured.step_s(4) < 1.03


def test_a_new_curve_comes_now_and_then_and_rounds_of_nothing_are_ignored():
    model = CostModel(MEASURED)
    news = [model.observe(4, 0.02) for _ in range(64)]
    assert sum(news) == 2
    before = model.curve
    assert not model.observe(0, 0.02)
    assert not model.observe(4, 0.0)
    assert model.curve is before


def test_the_curve_never_falls_whatever_the_rounds_said():
    rng = np.random.default_rng(3)
    model = trained(lambda size: 0.01 * rng.uniform(0.5, 2.0), range(1, 200))
    assert (np.diff(model.curve.steps_s(np.arange(1, 200))) >= -1e-12).all()
