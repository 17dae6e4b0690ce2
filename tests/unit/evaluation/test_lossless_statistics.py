"""Seeds are fixed; each bound asked for here would fail by chance less than once in a million seeds."""

import numpy as np
import pytest
import torch

from dspark.evaluation.lossless.statistics import (
    ERROR_RATE,
    chi_square_p_value,
    place_in_distribution,
    sequences_p_value,
    uniform_p_value,
)


@pytest.mark.parametrize(("statistic", "freedom", "p_value"), [(3.841, 1, 0.05), (18.307, 10, 0.05)])
def test_the_chi_square_law_has_its_known_quantiles(statistic, freedom, p_value):
    expected = [1000.0] * (freedom + 1)
    shift = np.sqrt(statistic * 1000 / 2)
    counts = [1000 + shift, 1000 - shift, *expected[2:]]
    assert chi_square_p_value(counts, expected) == pytest.approx(p_value, rel=0.01)


def test_what_cannot_happen_and_did_has_no_chance():
    assert chi_square_p_value([10, 1], [11, 0]) == 0.0
    assert sequences_p_value([(0,), (2,)], {(0,): 1.0}) == 0.0


def test_rare_cells_are_pooled_so_that_one_of_them_proves_nothing():
    assert chi_square_p_value([100, 100, 1], [100, 100.999, 0.001]) > 0.1


def draws(probs, seed):
    rng = np.random.default_rng(seed)
    return [int(rng.choice(len(row), p=row)) for row in probs]


def random_probs(num_rows, *, sharpness, seed=0):
    logits = np.random.default_rng(seed).normal(0, 2, (num_rows, 12)) * sharpness
    weights = np.exp(logits)
    return weights / weights.sum(1, keepdims=True)


def test_tokens_drawn_from_their_distributions_lie_uniformly_in_them():
    probs = random_probs(2000, sharpness=1.0)
    places = place_in_distribution(torch.tensor(probs), draws(probs, 1), np.random.default_rng(2))
    assert ((places >= 0) & (places < 1)).all()
    assert uniform_p_value(places) > ERROR_RATE


def test_tokens_drawn_at_another_temperature_are_noticed():
    probs, warmer = random_probs(2000, sharpness=1.0), random_probs(2000, sharpness=0.7)
    places = place_in_distribution(torch.tensor(probs), draws(warmer, 1), np.random.default_rng(2))
    assert uniform_p_value(places) < ERROR_RATE


def test_the_place_of_a_token_is_behind_the_more_probable_ones():
    probs = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)
    rng = np.random.default_rng(0)
    assert 0.8 <= place_in_distribution(probs, [0], rng)[0] < 1.0
    assert 0.5 <= place_in_distribution(probs, [2], rng)[0] < 0.8
