"""Appendix A of the paper: looking ahead shows (0.85, 0.15) where the target is (0.7, 0.3).

The same check must catch the retrospective search and pass every policy that ships. Error rate of the
sampling check: below one in a million.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from dspark.decoding.acceptance import (
    Judgement,
    accept_batch,
    acceptance_probability,
    normalised,
    residual_probs,
)
from dspark.decoding.drafting import draft_tokens
from dspark.decoding.types import SamplingParams, SparseProbs
from dspark.scheduling.allocation import allocate_early_stop, allocate_fixed, allocate_off
from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.survival import survival

A, B = 0, 1
TARGET = torch.tensor([0.7, 0.3], dtype=torch.float64)
DRAFT = SparseProbs(np.array([A, B], dtype=np.int32), np.array([0.5, 0.5], dtype=np.float32))
# SPS(1, 2, 3) = 1.0, 0.5, 0.45
CURVE = CapacityCurve.from_points([(1, 1.0), (2, 1 / 0.5), (3, 1 / 0.45)])
Policy = Callable[[Sequence[float]], int]


def confidences(first_draft: int) -> list[float]:
    """The second confidence is computed from the first draft."""
    return [0.8, 0.9 if first_draft == A else 0.0]


def retrospective(confidence: Sequence[float]) -> int:
    """What must not be done: compare all prefixes, with all confidences in view."""
    speeds = [
        (1.0 + survival(np.array(confidence))[:length].sum()) * CURVE.steps_per_second(1 + length)
        for length in range(3)
    ]
    return int(np.argmax(speeds))


SHIPPED: dict[str, Policy] = {
    "early-stop": lambda confidence: allocate_early_stop([confidence], CURVE)[0],
    "off": lambda confidence: allocate_off(1)[0],
    **{
        f"fixed-{length}": lambda confidence, length=length: allocate_fixed([len(confidence)], length)[0]
        for length in (1, 2)
    },
}


def first_token_by_enumeration(policy: Policy) -> list[float]:
    """Exact distribution of the first committed token."""
    shown = torch.zeros(2, dtype=torch.float64)
    for draft, weight in zip(DRAFT.token_ids.tolist(), normalised(DRAFT), strict=True):
        if policy(confidences(draft)) == 0:
            shown += weight * TARGET
            continue
        survives = acceptance_probability(float(TARGET[draft]), weight)
        shown[draft] += weight * survives
        shown += weight * (1.0 - survives) * residual_probs(TARGET, DRAFT)
    return shown.tolist()


def first_token_by_sampling(policy: Policy, num_samples: int) -> float:
    """Share of A as first committed token, through the real drafting, acceptance and randomness."""
    samplings = [SamplingParams(seed=seed) for seed in range(num_samples)]
    logits = torch.zeros(num_samples, 2)
    blocks = [
        draft_tokens(logits, samplings, [5 + k] * num_samples, None, bases=[5] * num_samples)
        for k in range(2)
    ]
    judgements = []
    for n, sampling in enumerate(samplings):
        length = policy(confidences(int(blocks[0][0][n])))
        drafts = np.array([blocks[k][0][n] for k in range(length)], dtype=np.int32)
        supports = tuple(blocks[k][1][n] for k in range(length))
        judgements.append(Judgement(3 * n, 5, drafts, supports, sampling))
    verdicts = accept_batch(TARGET.log().expand(3 * num_samples, 2), judgements)
    return float(np.mean([verdict.token_ids[0] == A for verdict in verdicts]))


def check_is_lossless(policy: Policy) -> None:
    """The one check both sides of the negative control go through."""
    assert first_token_by_enumeration(policy) == pytest.approx([0.7, 0.3], abs=1e-12)
    num_samples = 10_000
    # 5 standard deviations of a share of 0.7
    bound = 5 * np.sqrt(0.7 * 0.3 / num_samples)
    assert abs(first_token_by_sampling(policy, num_samples) - 0.7) < bound


@pytest.mark.parametrize("name", SHIPPED)
def test_every_policy_that_ships_shows_the_target(name):
    check_is_lossless(SHIPPED[name])


def test_the_retrospective_search_is_caught_by_the_same_check():
    with pytest.raises(AssertionError):
        check_is_lossless(retrospective)


def test_the_retrospective_search_shows_the_figures_of_the_paper():
    assert [retrospective(confidences(draft)) for draft in (A, B)] == [2, 0]
    assert first_token_by_enumeration(retrospective) == pytest.approx([0.85, 0.15], abs=1e-12)
    assert first_token_by_sampling(retrospective, 10_000) == pytest.approx(0.85, abs=5 * 0.0036)


def test_early_stop_verifies_nothing_here_whatever_the_first_draft():
    for draft in (A, B):
        assert allocate_early_stop([confidences(draft)], CURVE) == [0]
