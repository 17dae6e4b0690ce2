"""Luck depends on seed, request and position only, and confidences mean what they say."""

from __future__ import annotations

import numpy as np
import pytest

from dspark.evaluation.simulation.luck import Luck
from dspark.evaluation.simulation.trace import DOMAINS, TraceRequest
from dspark.scheduling.calibration import expected_calibration_error
from dspark.scheduling.survival import survival

GAMMA = 7


def luck(*, domain="chat", seed=1, gamma=GAMMA, difficulty=0.0, output_len=20_000, **options) -> Luck:
    trace = [TraceRequest(0.0, 5, output_len, difficulty, domain)] * 2
    return Luck(trace, seed=seed, gamma=gamma, **options)


def test_the_same_seed_gives_the_same_story_and_another_another():
    first, same, other = (luck(seed=seed, output_len=50).story(0) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.text, same.text)
    np.testing.assert_array_equal(first.confidence, same.confidence)
    np.testing.assert_array_equal(first.num_right, same.num_right)
    assert not np.array_equal(first.text, other.text)
    assert not np.array_equal(first.num_right, other.num_right)


def test_requests_of_one_trace_have_luck_of_their_own():
    both = luck(output_len=50)
    assert not np.array_equal(both.story(0).text, both.story(1).text)


def test_a_longer_output_has_the_luck_of_a_shorter_one_at_the_positions_they_share():
    short, long = luck(output_len=40).story(0), luck(output_len=90).story(0)
    np.testing.assert_array_equal(short.text[:40], long.text[:40])
    np.testing.assert_array_equal(short.num_right, long.num_right[:41])


def test_a_shorter_block_has_the_luck_of_the_first_drafts_of_a_longer_one():
    short, long = luck(gamma=3, output_len=90).story(0), luck(gamma=7, output_len=90).story(0)
    np.testing.assert_array_equal(short.num_right, np.minimum(long.num_right, 3))
    np.testing.assert_array_equal(short.confidence, long.confidence[:, :3])


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_position_is_accepted_as_often_as_its_domain_says(domain):
    story = luck(domain=domain).story(0)
    assert (story.num_right > 0).mean() == pytest.approx(DOMAINS[domain][0], abs=0.02)
    assert story.confidence[:, 0].mean() == pytest.approx(DOMAINS[domain][0], abs=0.02)


def test_confidences_are_calibrated_at_every_position_and_tell_blocks_apart():
    story = luck().story(0)
    survived = story.num_right[:, None] > np.arange(GAMMA)
    predicted = survival(story.confidence)
    errors = [expected_calibration_error(predicted[:, k], survived[:, k]) for k in range(GAMMA)]
    assert max(errors) < 0.02
    sure = story.confidence[:, 0] > np.median(story.confidence[:, 0])
    assert survived[sure, 0].mean() > survived[~sure, 0].mean() + 0.1


def test_an_offset_makes_confidences_too_sure_and_leaves_outcomes_alone():
    fair, sure = luck().story(0), luck(confidence_offset=1.0).story(0)
    np.testing.assert_array_equal(fair.num_right, sure.num_right)
    assert (sure.confidence > fair.confidence).all()
    assert expected_calibration_error(sure.confidence[:, 0], sure.num_right > 0) > 0.05


def test_without_a_spread_all_blocks_of_a_request_look_alike():
    story = luck(spread=0.0, output_len=100).story(0)
    np.testing.assert_array_equal(story.confidence, np.repeat(story.confidence[:1], 101, axis=0))


def test_a_harder_request_is_never_luckier():
    easy, hard = luck(difficulty=-1.0).story(0), luck(difficulty=1.0).story(0)
    assert (hard.num_right <= easy.num_right).all()
    assert hard.num_right.mean() < easy.num_right.mean() - 1.0
