"""Judges drafts against the target's logits. Knows nothing of where either came from.

Losslessness: whatever the drafts are, each committed token is distributed as the target's own choice.
    GREEDY: every committed token is the target's argmax, by construction.
    REJECTION: P(x) = draft(x) min(1, target(x)/draft(x)) + P(reject) residual(x) = target(x), paper §2.1,
        provided the draft was drawn from exactly the distribution given here, and that whether it is
        verified does not depend on its value (see `dspark.scheduling.allocation`).
    COUPLED: every committed token is the winner of the target's own race, by construction.
The target's choice and distribution are those of the adjusted logits (see `dspark.decoding.adjustment`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.adjustment import LogitAdjuster, adjust_blocks
from dspark.decoding.logprobs import token_logprobs
from dspark.decoding.race import race_winners
from dspark.decoding.rng import Purpose, uniforms
from dspark.decoding.sampling import argmax_with_margin, draw, shaped_probs_of_rows
from dspark.decoding.types import Acceptance, SamplingParams, SparseProbs, TokenIds, TokenLogprobs
from dspark.errors import InvalidRequestError

# One unit in the last place of bfloat16, relative to the best logit: closer than this, two kernels that
# sum in a different order may disagree about the argmax.
NEAR_TIE_MARGIN = 2.0**-7


@dataclass(frozen=True, slots=True)
class Judgement:
    """One request's drafts and where its logits lie.

    Attributes:
        first_row: row `first_row + i` of the logits is the target's distribution at position
            `base_committed_len + i`, for i = 0 .. number of drafts.
        draft_probs: one per draft for REJECTION, else empty.
        adjuster: of the committed tokens; None exactly where `sampling` has no adjustments.
    """

    first_row: int
    base_committed_len: int
    # [k]
    draft_token_ids: TokenIds
    draft_probs: tuple[SparseProbs, ...]
    sampling: SamplingParams
    adjuster: LogitAdjuster | None = None

    def __post_init__(self) -> None:
        assert (self.adjuster is None) == (self.sampling.adjustments is None), self.sampling

    @property
    def num_rows(self) -> int:
        """Rows of the logits it is about."""
        return len(self.draft_token_ids) + 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one judgement commits: the accepted drafts and one token of the target's."""

    num_accepted: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    num_near_ties: int = 0


# Lowest id of the greatest logit of each row, that logit, and the second greatest.
BestTwo = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(slots=True)
class _Progress:
    """A sampled judgement on its way through the rows."""

    index: int
    judgement: Judgement
    drafts: list[int]
    token_ids: list[int] = field(default_factory=list)


def accept_batch(
    target_logits: Tensor,  # [T, V] any float dtype
    judgements: Sequence[Judgement],
    *,
    find_best: BestTwo = argmax_with_margin,
) -> list[Verdict]:
    """Judge all requests of a step; no drafts is plain decoding of one token.

    `find_best` may be a faster function that finds the same.

    Raises:
        InvalidRequestError: a REJECTION draft without a distribution it could have been drawn from.
    """
    assert target_logits.ndim == 2, target_logits.shape
    is_adjusted = [judgement.adjuster is not None for judgement in judgements]
    adjusted = [j for j, flag in zip(judgements, is_adjusted, strict=True) if flag]
    if adjusted:
        plain = [j for j, flag in zip(judgements, is_adjusted, strict=True) if not flag]
        streams = {
            False: iter(_judge(target_logits, plain, find_best)),
            True: iter(_judge(*_adjust(target_logits, adjusted), find_best)),
        }
        verdicts = [next(streams[flag]) for flag in is_adjusted]
    else:
        verdicts = _judge(target_logits, judgements, find_best)
    return [
        _with_logprobs(target_logits, judgement, verdict)
        for judgement, verdict in zip(judgements, verdicts, strict=True)
    ]


def acceptance_probability(target_prob: float, draft_prob: float) -> float:
    """Probability that a draft survives: min(1, target/draft), paper §2.1."""
    return min(1.0, target_prob / draft_prob)


def residual_probs(
    target_probs: Tensor,  # [V] float64
    draft_probs: SparseProbs,
) -> Tensor:
    """Distribution after a rejection: max(target - draft, 0) renormalised, [V] float64 (paper §2.1).

    Where nothing is left (draft and target are equal up to rounding) it is the target's own.
    """
    token_ids = torch.from_numpy(draft_probs.token_ids.astype(np.int64)).to(target_probs.device)
    weights = torch.from_numpy(normalised(draft_probs)).to(target_probs.device)
    residual = target_probs.clone()
    residual[token_ids] = (residual[token_ids] - weights).clamp_(min=0.0)
    mass = residual.sum()
    return residual / mass if mass > 0.0 else target_probs


def normalised(draft_probs: SparseProbs) -> npt.NDArray[np.float64]:
    """The draft distribution in float64, [S]."""
    weights = draft_probs.probs.astype(np.float64)
    total: np.float64 = weights.sum()
    return weights / total


def _adjust(logits: Tensor, judgements: Sequence[Judgement]) -> tuple[Tensor, list[Judgement]]:
    """The adjusted logits of these judgements alone, float32 or float64, and the judgements over them."""
    rows = [row for j in judgements for row in range(j.first_row, j.first_row + j.num_rows)]
    adjusted = logits[torch.tensor(rows, device=logits.device)]
    adjusted = adjusted if adjusted.dtype == torch.float64 else adjusted.float()
    adjust_blocks(
        adjusted, [(j.adjuster, j.draft_token_ids.tolist()) for j in judgements if j.adjuster is not None]
    )
    ends = accumulate(judgement.num_rows for judgement in judgements)
    return adjusted, [replace(j, first_row=end - j.num_rows) for j, end in zip(judgements, ends, strict=True)]


def _judge(logits: Tensor, judgements: Sequence[Judgement], find_best: BestTwo) -> list[Verdict]:
    is_greedy = [judgement.sampling.acceptance is Acceptance.GREEDY for judgement in judgements]
    asked = [j for j, flag in zip(judgements, is_greedy, strict=True) if flag]
    greedy = _judge_greedy(logits, asked, find_best)
    sampled = _judge_sampled(logits, [j for j, flag in zip(judgements, is_greedy, strict=True) if not flag])
    streams = {True: iter(greedy), False: iter(sampled)}
    return [next(streams[flag]) for flag in is_greedy]


def _judge_greedy(logits: Tensor, judgements: Sequence[Judgement], find_best: BestTwo) -> list[Verdict]:
    if not judgements:
        return []
    rows = [
        row
        for judgement in judgements
        for row in range(judgement.first_row, judgement.first_row + judgement.num_rows)
    ]
    is_whole = rows == list(range(logits.shape[0]))
    best_ids, best, second = find_best(logits if is_whole else logits[torch.tensor(rows)])
    near = (best - second).float() <= NEAR_TIE_MARGIN * best.float().abs()
    choices, near_ties = best_ids.tolist(), near.tolist()
    verdicts, start = [], 0
    for judgement in judgements:
        drafts = judgement.draft_token_ids.tolist()
        chosen = choices[start : start + len(drafts) + 1]
        num_accepted = 0
        while num_accepted < len(drafts) and drafts[num_accepted] == chosen[num_accepted]:
            num_accepted += 1
        num_near_ties = sum(near_ties[start : start + num_accepted + 1])
        verdicts.append(Verdict(num_accepted, tuple(chosen[: num_accepted + 1]), num_near_ties=num_near_ties))
        start += len(drafts) + 1
    return verdicts


def _judge_sampled(logits: Tensor, judgements: Sequence[Judgement]) -> list[Verdict]:
    """Row by row for all requests at once, so that rows behind a rejection cost nothing."""
    verdicts: list[Verdict | None] = [None] * len(judgements)
    active = [_Progress(index, j, j.draft_token_ids.tolist()) for index, j in enumerate(judgements)]
    while active:
        rows = torch.tensor([p.judgement.first_row + len(p.token_ids) for p in active])
        target_probs = shaped_probs_of_rows(
            logits[rows.to(logits.device)], [p.judgement.sampling for p in active]
        )
        num_before = [len(progress.token_ids) for progress in active]
        _choose_coupled(target_probs, active)
        _choose_by_rejection(target_probs, active)
        still_active = []
        for progress, place in zip(active, num_before, strict=True):
            is_draft = place < len(progress.drafts)
            # A token other than the draft ends the block, and so does the bonus token. The residual never
            # holds the draft it rejected, so equality means accepted.
            if is_draft and progress.token_ids[place] == progress.drafts[place]:
                still_active.append(progress)
            else:
                verdicts[progress.index] = Verdict(place, tuple(progress.token_ids))
        active = still_active
    return [verdict for verdict in verdicts if verdict is not None]


def _choose_coupled(target_probs: Tensor, active: Sequence[_Progress]) -> None:
    rows = [row for row, p in enumerate(active) if p.judgement.sampling.acceptance is Acceptance.COUPLED]
    if not rows:
        return
    chosen = [active[row] for row in rows]
    winners = race_winners(target_probs[torch.tensor(rows)], _seeds(chosen), _positions(chosen))
    for progress, winner in zip(chosen, winners.tolist(), strict=True):
        progress.token_ids.append(winner)


def _choose_by_rejection(target_probs: Tensor, active: Sequence[_Progress]) -> None:
    rows = [row for row, p in enumerate(active) if p.judgement.sampling.acceptance is Acceptance.REJECTION]
    if not rows:
        return
    chosen = [active[row] for row in rows]
    thresholds = uniforms(_seeds(chosen), _positions(chosen), Purpose.ACCEPT)
    residuals, bonuses = [], []
    for row, progress, threshold in zip(rows, chosen, thresholds, strict=True):
        place = len(progress.token_ids)
        if place == len(progress.drafts):
            bonuses.append((row, progress))
        elif threshold < _survival_of_draft(target_probs[row], progress):
            progress.token_ids.append(progress.drafts[place])
        else:
            residuals.append((row, progress))
    if bonuses:
        weights = target_probs[torch.tensor([row for row, _ in bonuses])]
        _draw_into([progress for _, progress in bonuses], weights, Purpose.BONUS)
    if residuals:
        weights = torch.stack(
            [
                residual_probs(target_probs[row], p.judgement.draft_probs[len(p.token_ids)])
                for row, p in residuals
            ]
        )
        _draw_into([progress for _, progress in residuals], weights, Purpose.RESIDUAL)


def _survival_of_draft(target_probs: Tensor, progress: _Progress) -> float:
    place, judgement = len(progress.token_ids), progress.judgement
    if len(judgement.draft_probs) != len(progress.drafts):
        raise InvalidRequestError(
            f"draft_probs holds {len(judgement.draft_probs)} distributions for "
            f"{len(progress.drafts)} drafts; send one per draft with rejection sampling",
            field="draft_probs",
        )
    draft_probs, token_id = judgement.draft_probs[place], progress.drafts[place]
    found = np.nonzero(draft_probs.token_ids == token_id)[0]
    if len(found) != 1 or not draft_probs.probs[found[0]] > 0.0:
        raise InvalidRequestError(
            f"draft_probs of draft {place} does not hold its token {token_id}; "
            "send the distribution it was drawn from",
            field="draft_probs",
        )
    draft_prob = float(normalised(draft_probs)[found[0]])
    return acceptance_probability(float(target_probs[token_id]), draft_prob)


def _draw_into(progresses: Sequence[_Progress], weights: Tensor, purpose: Purpose) -> None:
    tokens = draw(weights, uniforms(_seeds(progresses), _positions(progresses), purpose))
    for progress, token in zip(progresses, tokens.tolist(), strict=True):
        progress.token_ids.append(token)


def _seeds(progresses: Sequence[_Progress]) -> list[int]:
    return [progress.judgement.sampling.seed for progress in progresses]


def _positions(progresses: Sequence[_Progress]) -> list[int]:
    return [progress.judgement.base_committed_len + len(progress.token_ids) for progress in progresses]


def _with_logprobs(logits: Tensor, judgement: Judgement, verdict: Verdict) -> Verdict:
    num_top = judgement.sampling.num_logprobs
    if num_top is None:
        return verdict
    rows = logits[judgement.first_row : judgement.first_row + len(verdict.token_ids)]
    return replace(verdict, logprobs=token_logprobs(rows, verdict.token_ids, num_top))
