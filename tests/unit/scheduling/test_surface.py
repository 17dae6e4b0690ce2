"""What steps cost by size and context: fitted, between and beyond what was measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.decoding.types import StepCost
from dspark.errors import ConfigurationError
from dspark.scheduling.surface import CapacitySurface, StepLoad

# (rows, requests, context): as the engine measures
KINDS = [
    *((rows, -(-rows // 8), 256) for rows in (1, 2, 4, 8, 16, 32, 64)),
    *((rows, requests, context) for context in (1024, 2048) for rows, requests in ((8, 1), (8, 8), (16, 2))),
]
PER_CONTEXT = st.floats(0.0, 3e-6)
NOISE = st.lists(st.floats(0.7, 1.5), min_size=len(KINDS), max_size=len(KINDS))


def truth(rows, requests, context, key_s, score_s):
    return 0.012 + 0.001 * rows + key_s * requests * context + score_s * rows * context


def measured(key_s, score_s, noise=None):
    return CapacitySurface.from_points(
        [
            StepCost(rows, factor * truth(rows, requests, context, key_s, score_s), requests, context)
            for (rows, requests, context), factor in zip(KINDS, noise or [1.0] * len(KINDS), strict=True)
        ]
    )


@given(PER_CONTEXT, PER_CONTEXT, st.integers(1, 100), st.integers(1, 40), st.integers(0, 100_000))
def test_costs_that_are_linear_in_the_context_are_found_between_and_beyond_what_was_measured(
    key_s, score_s, rows, requests, context
):
    surface = measured(key_s, score_s)
    expected = truth(rows, requests, context, key_s, score_s)
    load = StepLoad(rows, requests * context, rows * context)
    assert surface.step_s(load) == pytest.approx(expected, rel=1e-6)
    curve = surface.at(requests, context)
    assert curve.step_s(rows) == pytest.approx(expected, rel=1e-6)
    assert curve.rounds_s(rows, 3) == pytest.approx(curve.steps_s(np.arange(rows, rows + 3)))


@given(PER_CONTEXT, PER_CONTEXT, NOISE, st.integers(1, 40), st.integers(0, 10_000))
def test_however_noisy_neither_more_rows_nor_more_context_are_ever_cheaper_nor_free(
    key_s, score_s, noise, requests, context
):
    surface = measured(key_s, score_s, noise)
    seconds = surface.at(requests, context).steps_s(np.arange(1, 200))
    assert (seconds > 0.0).all()
    assert (np.diff(seconds) >= -1e-12).all()
    longer = surface.at(requests, context + 1000).steps_s(np.arange(1, 200))
    assert (longer >= seconds).all()


@given(NOISE)
def test_at_the_shortest_context_it_says_what_was_measured(noise):
    # Noise on longer contexts only: what it does to the fit must not show here.
    noise = [1.0] * 7 + noise[7:]
    surface = measured(1e-6, 1e-6, noise)
    for rows, requests, context in KINDS[:7]:
        found = surface.step_s(StepLoad(rows, requests * context, rows * context))
        # Where noise takes more for attention than a step can hold, sizes are smoothed.
        assert found == pytest.approx(truth(rows, requests, context, 1e-6, 1e-6), rel=0.25)


def test_a_context_that_seems_to_make_steps_faster_is_taken_to_cost_nothing():
    surface = CapacitySurface.from_points(
        [StepCost(1, 0.01, 1, 256), StepCost(8, 0.02, 1, 256), StepCost(8, 0.015, 1, 2048)]
    )
    assert (surface.key_s, surface.score_s) == (0.0, 0.0)


def test_keys_alone_and_scores_alone_are_told_apart():
    assert measured(2e-6, 0.0).key_s == pytest.approx(2e-6)
    assert measured(2e-6, 0.0).score_s == pytest.approx(0.0, abs=1e-9)
    assert measured(0.0, 2e-6).score_s == pytest.approx(2e-6)


@pytest.mark.parametrize("context", [0, 256])
def test_steps_of_one_context_cost_the_same_in_all(context):
    surface = CapacitySurface.from_points([StepCost(1, 0.01, 1, context), StepCost(8, 0.02, 1, context)])
    assert surface.at(5, 0) == surface.at(5, 9000) == surface.measured


def test_both_edges_of_every_stair_make_a_staircase_in_every_context():
    stairs = [(1, 0.010), (8, 0.010), (9, 0.016), (16, 0.016), (17, 0.022), (32, 0.022)]
    surface = CapacitySurface.from_points(
        [StepCost(rows, seconds, 1, 256) for rows, seconds in stairs] + [StepCost(8, 0.012, 1, 2256)]
    )
    for context in (256, 5000):
        jumps = np.diff(surface.at(1, context).steps_s(np.arange(1, 33)))
        assert np.flatnonzero(jumps > 0.004).tolist() == [7, 15]


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ([], "step_cost is empty"),
        ([StepCost(0, 0.1)], "positive"),
        ([StepCost(1, 0.1, 1, -256)], "negative"),
        ([StepCost(1, 0.1, -1, 256)], "negative"),
        ([StepCost(1, 0.1, 1, 256), StepCost(8, 0.1, 1, 2048)], r"\[8\] tokens at longer contexts only"),
    ],
)
def test_points_that_make_no_surface_are_refused_by_name(points, reason):
    with pytest.raises(ConfigurationError, match=reason):
        CapacitySurface.from_points(points)


def test_costs_that_are_flat_at_the_shortest_context_are_refused():
    surface = CapacitySurface.from_points(
        [StepCost(1, 0.1, 1, 256), StepCost(8, 0.1, 1, 256), StepCost(8, 0.2, 1, 2048)]
    )
    with pytest.raises(ConfigurationError, match="flat"):
        surface.check_rises()
