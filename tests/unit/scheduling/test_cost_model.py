"""Costs that follow what rounds really took."""

from __future__ import annotations

import numpy as np
import pytest

from dspark.decoding.types import StepCost
from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.cost_model import CostModel
from dspark.scheduling.surface import CapacitySurface, StepLoad

MEASURED = [(1, 0.010), (4, 0.012), (16, 0.030), (64, 0.100)]


def model_of(points) -> CostModel:
    return CostModel(CapacitySurface.from_curve(CapacityCurve.from_points(points)))


def step_s(model, size):
    return model.step_s(StepLoad(size))


def trained(true_s, sizes, *, rounds=600, noise=0.0, seed=0):
    rng, model = np.random.default_rng(seed), model_of(MEASURED)
    for _ in range(rounds):
        size = int(rng.choice(sizes))
        model.observe(StepLoad(size), true_s(size) * float(np.exp(noise * rng.standard_normal())))
    return model


def test_before_any_round_it_is_what_was_measured():
    assert model_of(MEASURED).curve(3, 500) == CapacityCurve.from_points(MEASURED)


def test_it_finds_costs_that_were_measured_wrong():
    truth = CapacityCurve.from_points([(1, 0.012), (4, 0.020), (16, 0.028), (64, 0.150)])
    model = trained(truth.step_s, range(1, 65), rounds=20_000)
    found = [step_s(model, size) / truth.step_s(size) for size in (1, 4, 10, 16, 40, 64)]
    assert found == pytest.approx([1.0] * 6, abs=0.1)
    assert model.error < 0.1


def test_a_machine_that_became_slower_is_slower_at_sizes_that_were_not_seen_too():
    measured = CapacityCurve.from_points(MEASURED)
    model = trained(lambda size: 1.3 * measured.step_s(size), (3, 4, 5), rounds=1500)
    assert step_s(model, 4) / measured.step_s(4) == pytest.approx(1.3, abs=0.03)
    assert step_s(model, 64) / measured.step_s(64) > 1.02


def test_noise_of_a_fifth_leaves_an_error_of_the_curve_of_a_few_percent():
    measured = CapacityCurve.from_points(MEASURED)
    # Standard error of the mean of some 20 rounds of 20 % noise is 4.5 %; three of them, one time in 370.
    model = trained(measured.step_s, (4,), noise=0.2)
    assert step_s(model, 4) / measured.step_s(4) == pytest.approx(1.0, abs=0.14)
    assert 0.1 < model.error < 0.25


def test_one_interrupted_round_moves_little():
    measured, model = CapacityCurve.from_points(MEASURED), model_of(MEASURED)
    for number in range(32):
        model.observe(StepLoad(4), 100 * measured.step_s(4) if number == 16 else measured.step_s(4))
    assert step_s(model, 4) / measured.step_s(4) < 1.03


def test_a_new_curve_comes_now_and_then_and_rounds_of_nothing_are_ignored():
    model, surfaces = model_of(MEASURED), []
    for _ in range(64):
        model.observe(StepLoad(4), 0.02)
        surfaces.append(model.surface)
    assert len({id(surface) for surface in surfaces}) == 3
    before = step_s(model, 4)
    model.observe(StepLoad(0), 0.02)
    model.observe(StepLoad(4), 0.0)
    assert step_s(model, 4) == before


def test_the_curve_never_falls_whatever_the_rounds_said():
    rng = np.random.default_rng(3)
    model = trained(lambda size: 0.01 * rng.uniform(0.5, 2.0), range(1, 200))
    assert (np.diff(model.curve(1, 0).steps_s(np.arange(1, 200))) >= -1e-12).all()


# 10 ms and 1 ms a row, 1 µs a key, 0.5 µs a score
IN_CONTEXT = CapacitySurface.from_points(
    [
        StepCost(
            rows,
            0.010 + 0.001 * rows + 1e-6 * requests * context + 0.5e-6 * rows * context,
            requests,
            context,
        )
        for rows, requests, context in [(1, 1, 256), (8, 1, 256), (64, 8, 256), (8, 1, 2048), (8, 8, 2048)]
    ]
)


def load_of(rows, requests, context):
    return StepLoad(rows, requests * context, rows * context)


def test_a_phase_of_long_contexts_that_were_measured_wrong_leaves_short_ones_as_they_were():
    model, short, long = CostModel(IN_CONTEXT), load_of(16, 2, 200), load_of(16, 2, 3000)
    truth = 1.3 * IN_CONTEXT.step_s(long)
    for _ in range(3000):
        model.observe(long, truth)
    assert model.step_s(long) == pytest.approx(truth, rel=0.02)
    assert model.step_s(short) == pytest.approx(IN_CONTEXT.step_s(short), rel=0.05)
    assert model.error < 0.01


def test_contexts_that_take_turns_are_learnt_side_by_side():
    model = CostModel(IN_CONTEXT)
    loads = {load_of(16, 2, 200): 0.8, load_of(16, 2, 3000): 1.3}
    for _ in range(1500):
        for load, factor in loads.items():
            model.observe(load, factor * IN_CONTEXT.step_s(load))
    found = [model.step_s(load) / IN_CONTEXT.step_s(load) for load in loads]
    assert found == pytest.approx(list(loads.values()), rel=0.03)
    assert model.error < 0.03


def test_a_growing_context_is_predicted_without_learning_where_it_was_measured_right():
    model = CostModel(IN_CONTEXT)
    for context in range(100, 8000, 50):
        load = load_of(12, 3, context)
        model.observe(load, IN_CONTEXT.step_s(load))
    assert model.error < 1e-6


def test_the_curve_of_a_context_is_what_is_predicted_for_it_with_prompts_and_without():
    model = CostModel(IN_CONTEXT)
    for _ in range(100):
        model.observe(load_of(8, 1, 1500), 1.2 * IN_CONTEXT.step_s(load_of(8, 1, 1500)))
    curve = model.curve(3, 1500, draft_s=0.5)
    assert curve.round_s(10) == pytest.approx(0.5 + model.step_s(load_of(10, 3, 1500)))
    prompts = StepLoad(40, 140, 40 * 120)
    beside = curve.beside_prompt(3, 40, value=1.0, context_s=model.prompt_s(prompts, 1500))
    whole = StepLoad(50, 3 * 1500 + 140, 10 * 1500 + 40 * 120)
    scale = model.step_s(load_of(10, 3, 1500)) / IN_CONTEXT.step_s(load_of(10, 3, 1500))
    assert beside.round_s(10) == pytest.approx(0.5 + scale * IN_CONTEXT.step_s(whole), rel=1e-3)
    free = curve.beside_prompt(3, 40, context_s=model.prompt_s(prompts, 1500))
    assert free.round_s(3) == pytest.approx(curve.round_s(3))
