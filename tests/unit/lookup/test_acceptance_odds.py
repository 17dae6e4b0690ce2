"""Chances that are counted."""

from __future__ import annotations

import numpy as np
import pytest

from dspark.engine.acceptance_odds import AcceptanceOdds, Lately


def simulated(odds: AcceptanceOdds, rates: dict[int, float], num_blocks: int, gamma: int = 4) -> float:
    """Draw outcomes whose rate hangs on the match; returns the calibration error of survival, at worst."""
    rng = np.random.default_rng(5)
    predicted, survived = [], []
    for number in range(num_blocks):
        match_len = int(rng.choice(list(rates)))
        chances = odds.chances(match_len, Lately.RIGHT, gamma)
        right = np.cumprod(rng.random(gamma) < rates[match_len])
        num_right = int(right.sum())
        odds.observe(match_len, Lately.RIGHT, num_right, min(num_right + 1, gamma))
        if number >= num_blocks // 2:
            predicted.append(np.cumprod(chances))
            survived.append(right)
    gaps = np.abs(np.mean(predicted, axis=0) - np.mean(survived, axis=0))
    return float(gaps.max())


def test_chances_follow_outcomes_by_length_of_the_match() -> None:
    odds = AcceptanceOdds(4)
    assert simulated(odds, {1: 0.2, 8: 0.9}, 2000) < 0.02
    assert odds.chances(1, Lately.RIGHT, 4) == pytest.approx([0.2] * 4, abs=0.1)
    assert odds.chances(8, Lately.RIGHT, 4) == pytest.approx([0.9] * 4, abs=0.05)


def test_what_was_never_seen_leans_on_what_was() -> None:
    odds = AcceptanceOdds(4)
    assert odds.chances(1, Lately.UNKNOWN, 2) == pytest.approx([0.5, 0.5])
    for _ in range(50):
        odds.observe(2, Lately.WRONG, 0, 1)
    assert odds.chances(1, Lately.UNKNOWN, 1)[0] < 0.1


@pytest.mark.parametrize(("match_len", "lately"), [(0, Lately.UNKNOWN), (16, Lately.RIGHT)])
def test_a_chance_is_never_certain(match_len: int, lately: Lately) -> None:
    odds = AcceptanceOdds(3)
    for _ in range(3000):
        odds.observe(match_len, lately, 3, 3)
    assert (odds.chances(match_len, lately, 3) < 1.0).all()
    assert (odds.chances(match_len, lately, 3) > 0.98).all()


def test_the_error_by_position_is_of_positions_that_were_tried() -> None:
    odds = AcceptanceOdds(2)
    for _ in range(10):
        odds.observe(1, Lately.RIGHT, 0, 1)
    first, second = odds.errors()
    assert first > 0.1
    assert second == 0.0
