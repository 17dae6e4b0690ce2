"""How good predictions are, against definitions; and scalings fitted on other prompts."""

import numpy as np
import pytest

from dspark.evaluation.offline.confidence import judge_position, quality_of
from dspark.evaluation.offline.recalibration import halves_of, predictions_of
from dspark.scheduling.calibration import SequentialScaling
from tests.unit.evaluation.rounds_of_blocks import full_pass, random_rounds, results

GAMMA = 3


def test_calibration_error_is_over_twenty_bins_weighted_by_count():
    # Bins 0.20 and 0.90: gaps 0.3 (two of four) and 0.08 (two).
    judged = judge_position(np.array([0.2, 0.2, 0.91, 0.93]), np.array([1.0, 0.0, 1.0, 1.0]))
    assert judged.ece == pytest.approx(0.5 * 0.3 + 0.5 * 0.08)
    assert [(bar.low, bar.count) for bar in judged.bins] == [(0.2, 2), (0.9, 2)]
    assert (judged.bins[1].predicted, judged.bins[1].observed) == pytest.approx((0.92, 1.0))
    assert judged.brier == pytest.approx((0.64 + 0.04 + 0.0081 + 0.0049) / 4)
    assert (judged.predicted, judged.observed) == pytest.approx((0.56, 0.75))


def test_ties_are_half_right_in_the_area_under_the_curve():
    predicted, outcomes = np.array([0.5, 0.5, 0.9, 0.1]), np.array([1.0, 0.0, 1.0, 0.0])
    assert judge_position(predicted, outcomes).auroc == pytest.approx((0.5 + 1 + 1 + 1) / 4)
    assert judge_position(predicted, 1 - outcomes).auroc == pytest.approx(0.5 / 4)
    assert judge_position(predicted, np.ones(4)).auroc is None


def test_drafts_that_were_not_proposed_are_not_judged_and_the_summary_is_weighted():
    survival = np.array([[0.9, 0.8], [0.6, 0.5], [0.5, 0.1]])
    quality = quality_of(survival, np.array([2, 0, 1]), np.array([2, 2, 1]))
    first, second = quality.positions
    assert (first.count, second.count) == (3, 2)
    assert (first.observed, second.observed) == pytest.approx((2 / 3, 1 / 2))
    assert quality.summary.count == 5
    assert quality.summary.observed == pytest.approx((3 * 2 / 3 + 2 * 1 / 2) / 5)
    assert quality.summary.auroc == pytest.approx((3 * first.auroc + 2 * 1.0) / 5)


def test_a_position_where_all_survived_is_left_out_of_the_mean_area_only():
    quality = quality_of(np.array([[0.9, 0.4], [0.8, 0.6]]), np.array([1, 2]), np.array([2, 2]))
    assert quality.positions[0].auroc is None
    assert quality.summary.auroc == 1.0
    assert quality_of(np.zeros((0, 2)), np.zeros(0, int), np.zeros(0, int)).summary is None


def test_prompts_of_a_task_take_turns_in_the_halves():
    assert halves_of(("a", "b", "a", "a", "b")).tolist() == [0, 0, 1, 0, 1]


def test_refitted_confidences_are_better_and_judged_on_prompts_they_were_not_fitted_on():
    own = random_rounds(4000, GAMMA, scale=2.5)
    made = {one.name: one for one in predictions_of(own, results([full_pass(own)], gamma=GAMMA), 0.0)}
    assert list(made) == ["raw", "STS", "STS+offset"]
    errors = {
        name: quality_of(one.survival, own.accepted, own.proposed).summary.ece for name, one in made.items()
    }
    assert errors["STS"] < 0.5 * errors["raw"]
    assert made["STS"].fits[0].temperatures[0] == pytest.approx(2.5, rel=0.3)
    assert made["STS"].fits[0].offsets == (0.0,) * GAMMA
    # Another outcome on the first half changes what is predicted of the second, and nothing of the first.
    first = np.isin(own.prompt, [0, 2])
    changed = own.where(np.ones(len(own), bool))
    changed.accepted[first], changed.committed[first] = 0, 1
    (again,) = [
        one
        for one in predictions_of(changed, results([full_pass(changed)], gamma=GAMMA), 0.0)
        if one.name == "STS"
    ]
    assert (again.survival[first] == made["STS"].survival[first]).all()
    assert not (again.survival[~first] == made["STS"].survival[~first]).all()


def test_the_shipped_calibration_is_that_of_the_temperature():
    own = random_rounds(50, GAMMA)
    shipped = {
        "greedy": SequentialScaling.identity(GAMMA),
        "sampling": SequentialScaling((2.0,) * GAMMA, (0.5,) * GAMMA),
    }
    stored = results([full_pass(own)], gamma=GAMMA, shipped=shipped)
    assert [one.name for one in predictions_of(own, stored, 0.0)] == ["raw"], "too few blocks to refit"
    raw, sampled = predictions_of(own, stored, 1.0)
    assert sampled.name == "shipped"
    assert sampled.survival[:, 0] == pytest.approx(1 / (1 + np.exp(-(own.logits[:, 0] / 2 + 0.5))), abs=1e-6)
    assert raw.survival[:, 0] == pytest.approx(1 / (1 + np.exp(-own.logits[:, 0])), abs=1e-6)
