"""Chooses draft tokens from a drafter's logits, one block position for all requests.

Losslessness asks one thing of this file: for REJECTION the distribution handed out must be exactly the
one drawn from. It is truncated and cast to float32 *before* the draw. For GREEDY and COUPLED any draft
would do; choosing as the target would choose only raises acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.rng import Purpose, race_noise, uniforms
from dspark.decoding.sampling import argmax_with_margin, shaped_probs_of_rows
from dspark.decoding.types import Acceptance, SamplingParams, SparseProbs, TokenIds

# A draft distribution keeps the fewest tokens that hold this mass, and no more than so many: it travels
# with every draft, and what is cut off could only have been drafted once in two hundred draws.
KEPT_MASS = 0.995
MAX_SUPPORT = 256
# Rows [R, Vd] to the lowest place of the greatest of each, it and the second greatest, each [R].
FindBest = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class _Draw:
    """One sampled request at this block position."""

    row: int
    sampling: SamplingParams
    position: int
    base: int


def draft_tokens(
    logits: Tensor,  # [R, Vd] over the draft vocabulary
    samplings: Sequence[SamplingParams],  # [R]
    positions: Sequence[int],  # [R], absolute position of the token being drafted
    token_map: Tensor | None,  # [Vd] int64 target ids; None: identity
    *,
    bases: Sequence[int] | None = None,  # [R], base_committed_len of the block
    find_best: FindBest = argmax_with_margin,
) -> tuple[TokenIds, list[SparseProbs | None]]:
    """Choose one draft per request.

    `bases` makes the draw of a position new in every round. Without it a position drafted again after
    an earlier rejection repeats its random number, so a policy that looks at the confidences of earlier
    rounds (async mode) would know something about a draft it is about to schedule.

    `find_best` may be a faster `argmax_with_margin`.

    Returns:
        Target ids of the drafts, int32 [R], and for REJECTION the distribution each was drawn from.
    """
    assert logits.ndim == 2, logits.shape
    assert len(samplings) == len(positions) == logits.shape[0], (len(samplings), logits.shape)
    target_ids = None if token_map is None else token_map.cpu().numpy()
    token_ids = np.zeros(logits.shape[0], dtype=np.int32)
    draft_probs: list[SparseProbs | None] = [None] * logits.shape[0]
    greedy = [row for row, s in enumerate(samplings) if s.acceptance is Acceptance.GREEDY]
    if greedy:
        places = find_best(_take(logits, greedy))[0].cpu().numpy()
        token_ids[greedy] = places if target_ids is None else target_ids[places]
    draws = [
        _Draw(row, sampling, positions[row], bases[row] if bases else 0)
        for row, sampling in enumerate(samplings)
        if sampling.acceptance is not Acceptance.GREEDY
    ]
    if draws:
        rows = _take(logits, [draw.row for draw in draws])
        supports = _truncated(rows, [draw.sampling for draw in draws], target_ids)
        for draw, support, token_id in zip(draws, supports, _choose(draws, supports), strict=True):
            token_ids[draw.row] = token_id
            if draw.sampling.acceptance is Acceptance.REJECTION:
                draft_probs[draw.row] = support
    return token_ids, draft_probs


def _take(logits: Tensor, rows: Sequence[int]) -> Tensor:
    """Some rows of the logits, in order; no copy where all are meant."""
    return logits if len(rows) == logits.shape[0] else logits[torch.tensor(rows, device=logits.device)]


def _truncated(
    logits: Tensor,  # [A, Vd]
    samplings: Sequence[SamplingParams],
    target_ids: npt.NDArray[np.int64] | None,
) -> list[SparseProbs]:
    """The drafter's shaped distribution of each row, cut to the fewest tokens that hold KEPT_MASS."""
    probs = shaped_probs_of_rows(logits, samplings)
    best = probs.topk(min(MAX_SUPPORT, probs.shape[1]), dim=-1)
    values, places = best.values.cpu().numpy(), best.indices.cpu().numpy()
    token_ids = (places if target_ids is None else target_ids[places]).astype(np.int32)
    counts = (np.cumsum(values, axis=1) < KEPT_MASS).sum(axis=1) + 1
    supports = []
    for row, count in enumerate(counts):
        kept = values[row, :count].astype(np.float32)
        num_positive = int((kept > 0.0).sum())
        supports.append(SparseProbs(token_ids[row, :num_positive].copy(), kept[:num_positive]))
    return supports


def _choose(draws: Sequence[_Draw], supports: Sequence[SparseProbs]) -> list[int]:
    """Choose a token of each support, by inverse CDF (REJECTION) or by race (COUPLED)."""
    seeds, positions = [draw.sampling.seed for draw in draws], [draw.position for draw in draws]
    goals = uniforms(seeds, positions, Purpose.DRAFT, [draw.base for draw in draws])
    raced = [draw.sampling.acceptance is Acceptance.COUPLED for draw in draws]
    noise = iter(_race_noise_of(draws, supports, raced))
    chosen = []
    for support, goal, is_raced in zip(supports, goals, raced, strict=True):
        # Exactly the float32 values that are sent, in float64.
        probs = support.probs.astype(np.float64)
        if is_raced:
            place = int(np.argmin(next(noise) / probs))
        else:
            ends = np.cumsum(probs)
            place = min(int(np.searchsorted(ends, goal * ends[-1], side="right")), len(ends) - 1)
        chosen.append(int(support.token_ids[place]))
    return chosen


def _race_noise_of(
    draws: Sequence[_Draw], supports: Sequence[SparseProbs], raced: Sequence[bool]
) -> list[npt.NDArray[np.float64]]:
    """Noise of the raced supports, made in one call."""
    kept = [(d, s) for d, s, is_raced in zip(draws, supports, raced, strict=True) if is_raced]
    if not kept:
        return []
    lengths = [len(support.token_ids) for _, support in kept]
    seeds = np.repeat(np.array([draw.sampling.seed for draw, _ in kept], dtype=np.uint64), lengths)
    positions = np.repeat(np.array([draw.position for draw, _ in kept], dtype=np.uint64), lengths)
    noise = race_noise(seeds, positions, np.concatenate([support.token_ids for _, support in kept]))
    return np.split(noise, np.cumsum(lengths)[:-1])
