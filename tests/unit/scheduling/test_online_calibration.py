"""Refitting from what became of past blocks."""

from __future__ import annotations

import numpy as np
import pytest

from dspark.scheduling.calibration import SequentialScaling, sigmoid
from dspark.scheduling.online_calibration import OnlineScaling, Outcomes

GAMMA = 3
# acceptance = sigmoid(slope x logit + offset), by position
TRUTH = np.array([[0.7, -0.6], [1.4, 0.5], [1.0, 0.0]])


def blocks(rng, count, truth=TRUTH):
    """Decoded blocks: (logits, verified, accepted); what is verified depends on confidences alone."""
    found = []
    for _ in range(count):
        logits = rng.normal(0.5, 1.5, GAMMA)
        verified = 1 + int((np.cumprod(sigmoid(logits)) > 0.3).sum())
        verified = min(verified, GAMMA)
        survives = rng.random(GAMMA) < sigmoid(truth[:, 0] * logits + truth[:, 1])
        accepted = int(np.cumprod(survives)[:verified].sum())
        found.append((logits, verified, accepted))
    return found


def test_only_drafts_that_were_judged_count():
    logits = np.array([0.1, 0.2, 0.3])
    outcomes = Outcomes.of_blocks([(logits, 3, 1), (logits, 2, 2), (logits, 0, 0), (logits, 1, 0)])
    assert outcomes.positions.tolist() == [0, 1, 0, 1, 0]
    assert outcomes.is_accepted.tolist() == [True, False, True, True, False]
    assert outcomes.logits.tolist() == [0.1, 0.2, 0.1, 0.2, 0.1]
    assert Outcomes.of_blocks([]).positions.size == 0


def test_it_finds_the_true_scaling_from_a_wrong_one():
    rng, online = np.random.default_rng(0), OnlineScaling(SequentialScaling.identity(GAMMA))
    for _ in range(200):
        online.observe(Outcomes.of_blocks(blocks(rng, 32)))
    found = np.stack([1 / np.array(online.scaling.temperatures), online.scaling.offsets], axis=1)
    # With a memory of 2000 outcomes the standard error of an offset is near 0.06: four of them, 1 in 16,000.
    assert found == pytest.approx(TRUTH, abs=0.25)
    assert max(online.errors()) < 0.05


def test_the_error_shows_a_drift_and_falls_again():
    rng, online = np.random.default_rng(1), OnlineScaling(SequentialScaling.identity(GAMMA))
    online.observe(Outcomes.of_blocks(blocks(rng, 500)))
    assert online.errors()[0] > 0.08
    for _ in range(300):
        online.observe(Outcomes.of_blocks(blocks(rng, 32)))
    assert max(online.errors()) < 0.05


def test_a_good_scaling_is_not_spoilt_by_a_few_outcomes():
    fitted = SequentialScaling(tuple(1 / TRUTH[:, 0]), tuple(TRUTH[:, 1]))
    online = OnlineScaling(fitted)
    for _ in range(10):
        online.observe(Outcomes.of_blocks([(np.full(GAMMA, 3.0), 1, 0)]))
    moved = np.array(online.scaling.offsets) - np.array(fitted.offsets)
    assert -0.6 < moved[0] < 0.0
    assert moved[1:].tolist() == [0.0, 0.0]


def test_nothing_observed_changes_nothing():
    online = OnlineScaling(SequentialScaling.identity(GAMMA))
    online.observe(Outcomes.of_blocks([(np.zeros(GAMMA), 0, 0)]))
    assert online.scaling == SequentialScaling.identity(GAMMA)
    assert online.errors() == [0.0] * GAMMA


def test_extreme_logits_leave_it_finite():
    online = OnlineScaling(SequentialScaling.identity(GAMMA))
    for sign in (1, -1):
        for _ in range(50):
            online.observe(
                Outcomes.of_blocks([(np.full(GAMMA, sign * 80.0), GAMMA, 0 if sign > 0 else GAMMA)] * 8)
            )
    assert np.isfinite(online.scaling.apply(np.array([80.0, -80.0, 0.0]))).all()
    assert np.isfinite(online.errors()).all()
