"""Sequential scaling on data whose truth is known."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.scheduling.calibration import SequentialScaling, expected_calibration_error
from dspark.scheduling.survival import survival

TRUE_TEMPERATURES = np.array([2.5, 1.0, 0.5, 1.6])
TRUE_OFFSETS = np.array([-0.6, 0.0, 0.4, -0.3])


def blocks(num_blocks: int, seed: int):
    """Confidence logits that are too sure or too timid by known scalings, and what survived."""
    rng = np.random.default_rng(seed)
    true_logits = rng.normal(1.0, 1.5, (num_blocks, 4))
    accepted = rng.uniform(size=true_logits.shape) < 1.0 / (1.0 + np.exp(-true_logits))
    return (true_logits - TRUE_OFFSETS) * TRUE_TEMPERATURES, np.cumprod(accepted, axis=1)


def test_it_finds_temperatures_and_offsets_and_halves_the_error_on_held_out_blocks():
    logits, survived = blocks(40_000, seed=1)
    fitted = SequentialScaling.fit(logits, survived)
    assert np.allclose(fitted.temperatures, TRUE_TEMPERATURES, rtol=0.2)
    assert np.allclose(fitted.offsets, TRUE_OFFSETS, atol=0.15)
    held_out = blocks(40_000, seed=2)
    before = SequentialScaling.identity(4).survival_errors(*held_out)
    after = fitted.survival_errors(*held_out)
    assert max(after) < 0.02  # with 40,000 blocks the sampling noise of an error is below 0.01
    assert before[0] > 0.05 > 2 * after[0]


def test_without_offsets_it_finds_the_temperatures_of_a_head_that_needs_no_more():
    logits, survived = blocks(40_000, seed=5)
    fitted = SequentialScaling.fit(logits + TRUE_OFFSETS * TRUE_TEMPERATURES, survived, has_offsets=False)
    assert fitted.offsets == (0.0,) * 4
    assert np.allclose(fitted.temperatures, TRUE_TEMPERATURES, rtol=0.2)


def test_a_calibrated_head_is_left_alone_up_to_noise():
    logits, survived = blocks(40_000, seed=3)
    fitted = SequentialScaling.fit(logits / TRUE_TEMPERATURES + TRUE_OFFSETS, survived)
    assert np.allclose(fitted.temperatures, 1.0, rtol=0.2)
    assert np.allclose(fitted.offsets, 0.0, atol=0.15)


def test_a_head_that_is_too_sure_by_a_constant_is_mended():
    rng = np.random.default_rng(4)
    true_logits = rng.normal(0.0, 1.5, (40_000, 1))
    survived = rng.uniform(size=true_logits.shape) < 1.0 / (1.0 + np.exp(-true_logits))
    too_sure = true_logits + 0.5
    fitted = SequentialScaling.fit(too_sure, survived)
    assert fitted.offsets[0] == pytest.approx(-0.5, abs=0.1)
    assert fitted.survival_errors(too_sure, survived)[0] < 0.01
    assert SequentialScaling.identity(1).survival_errors(too_sure, survived)[0] > 0.05


def test_what_never_and_always_survives_gets_a_finite_scaling():
    logits = np.array([[2.0, -1.0], [1.0, 0.5], [0.0, 3.0]])
    for survived in (np.zeros((3, 2)), np.ones((3, 2))):
        fitted = SequentialScaling.fit(logits, survived)
        assert np.isfinite((*fitted.temperatures, *fitted.offsets)).all()
        assert np.abs(fitted.apply(logits) - survived[0, 0]).max() < 0.05


@given(st.lists(st.floats(-6, 6), min_size=1, max_size=7), st.floats(0.2, 5), st.floats(-3, 3))
def test_undo_gives_back_the_logits(logits, temperature, offset):
    column = np.array(logits)[:, None]
    scaling = SequentialScaling((temperature,), (offset,))
    assert np.allclose(scaling.undo(scaling.apply(column / 5)), column / 5, atol=1e-3)


def test_the_error_is_the_mean_gap_over_bins():
    predicted = np.array([0.1, 0.1, 0.9, 0.9])
    assert expected_calibration_error(predicted, np.array([0, 0, 1, 0])) == pytest.approx(
        0.5 * 0.1 + 0.5 * 0.4
    )
    assert expected_calibration_error(np.array([1.0, 0.0]), np.array([True, False])) == 0.0
    assert expected_calibration_error(np.zeros(0), np.zeros(0)) == 0.0


@given(st.lists(st.floats(-8, 8), min_size=2, max_size=20), st.floats(0.1, 10))
def test_the_order_of_confidences_is_kept(logits, temperature):
    applied = SequentialScaling((temperature,), (0.3,)).apply(np.sort(np.array(logits))[:, None])
    assert (np.diff(applied[:, 0]) >= 0).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_survival_never_rises_along_a_block(confidence):
    result = survival(np.array(confidence))
    assert (np.diff(result) <= 0).all()
    assert result[-1] == pytest.approx(np.prod(confidence))


def test_logits_of_single_positions_are_scaled_as_in_their_blocks():
    scaling = SequentialScaling((0.5, 1.0, 2.0), (0.3, 0.0, -0.2))
    logits = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]])
    positions = np.array([2, 0, 1])
    np.testing.assert_array_equal(
        scaling.at(positions, logits[1, positions]), scaling.apply(logits)[1, positions]
    )


def test_a_scaling_can_be_written_as_json():
    assert json.loads(json.dumps(asdict(SequentialScaling((0.5,), (0.3,))))) == {
        "temperatures": [0.5],
        "offsets": [0.3],
    }
