"""Draft tokens and the distributions that go with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dspark.decoding.drafting import KEPT_MASS, MAX_SUPPORT, draft_tokens
from dspark.decoding.race import race_winners
from dspark.decoding.sampling import shaped_probs
from dspark.decoding.types import Acceptance, SamplingParams


def logits(num_rows: int, num_tokens: int, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(num_rows, num_tokens, generator=torch.Generator().manual_seed(num_tokens))


@pytest.mark.parametrize("scale", [0.01, 2.0, 8.0])
def test_the_support_is_the_fewest_tokens_that_hold_the_mass(scale):
    rows = logits(20, 1000, scale)
    samplings = [SamplingParams(seed=n) for n in range(20)]
    token_ids, supports = draft_tokens(rows, samplings, [9] * 20, None)
    probs = shaped_probs(rows, SamplingParams()).numpy()
    for row, support in enumerate(supports):
        assert support is not None
        best = np.sort(probs[row])[::-1]
        fewest = min(int((np.cumsum(best) < KEPT_MASS).sum()) + 1, MAX_SUPPORT)
        assert len(support.token_ids) == len(set(support.token_ids.tolist())) == fewest
        assert support.probs.dtype == np.float32
        assert np.array_equal(support.probs, probs[row][support.token_ids].astype(np.float32))
        assert token_ids[row] in support.token_ids


def test_the_drafter_applies_the_truncations_of_the_request():
    _, supports = draft_tokens(logits(1, 500, 0.1), [SamplingParams(top_k=5)], [0], None)
    assert len(supports[0].token_ids) == 5


def test_draws_follow_the_distribution_that_is_sent():
    # Chi-square with 4 degrees of freedom; 33.4 is exceeded once in a million.
    num = 20_000
    row = torch.tensor([[2.0, 1.0, 0.0, 1.5, 0.5]])
    samplings = [SamplingParams(seed=seed) for seed in range(num)]
    token_ids, supports = draft_tokens(row.expand(num, 5), samplings, [4] * num, None, bases=[3] * num)
    expected = np.zeros(5)
    expected[supports[0].token_ids] = (
        num * supports[0].probs.astype(float) / supports[0].probs.sum(dtype=float)
    )
    counts = np.bincount(token_ids, minlength=5)
    assert ((counts - expected) ** 2 / expected).sum() < 33.4


def test_a_reduced_vocabulary_is_named_in_target_ids():
    token_map = torch.tensor([3, 50, 7, 99])
    rows = torch.tensor([[0.0, 9.0, 0.0, 0.0]] * 3)
    samplings = [SamplingParams(seed=1, acceptance=acceptance) for acceptance in Acceptance]
    token_ids, supports = draft_tokens(rows, samplings, [0, 0, 0], token_map)
    assert token_ids.dtype == np.int32
    assert token_ids.tolist() == [50, 50, 50]
    assert [support is not None for support in supports] == [a is Acceptance.REJECTION for a in Acceptance]
    assert supports[1].token_ids[0] == 50


def test_rows_are_independent_of_their_batch():
    rows = logits(9, 300)
    samplings = [SamplingParams(seed=n, acceptance=list(Acceptance)[n % 3]) for n in range(9)]
    together, _ = draft_tokens(rows, samplings, list(range(9)), None, bases=list(range(9)))
    alone = [
        draft_tokens(rows[n : n + 1], samplings[n : n + 1], [n], None, bases=[n])[0][0] for n in range(9)
    ]
    assert together.tolist() == alone


def test_a_drafter_equal_to_the_target_wins_the_same_races():
    rows = logits(200, 400)
    samplings = [SamplingParams(seed=n, acceptance=Acceptance.COUPLED, temperature=0.7) for n in range(200)]
    token_ids, _ = draft_tokens(rows, samplings, [8] * 200, None)
    winners = race_winners(shaped_probs(rows, samplings[0]), list(range(200)), [8] * 200)
    # They can differ only where the target's winner lies in the tail the drafter cuts off.
    assert (token_ids == winners).mean() > 0.98


def test_a_position_drafted_again_in_a_later_round_gets_a_new_draw():
    rows = torch.zeros(200, 50)
    samplings = [SamplingParams(seed=n) for n in range(200)]
    first, _ = draft_tokens(rows, samplings, [8] * 200, None, bases=[5] * 200)
    second, _ = draft_tokens(rows, samplings, [8] * 200, None, bases=[6] * 200)
    assert (first == second).mean() < 0.2
