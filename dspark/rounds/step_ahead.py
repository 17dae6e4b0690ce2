"""The step that a round plans, as far as it is known before any of its drafts are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dspark.decoding.types import DraftRequest
from dspark.rounds.request import LiveRequest
from dspark.scheduling.ranking import Floats
from dspark.scheduling.surface import StepLoad

NO_PROMPTS = StepLoad(0)


@dataclass(frozen=True, slots=True)
class StepAhead:
    """What a plan is made for.

    Contexts are tokens that earlier rounds committed: a plan that weighs them knows no draft of this one.

    Attributes:
        request_ids: of those that decode, in order of arrival.
        num_asked: drafts that a block may hold, by request; 0 where it gets none. One that was copied last
            time is taken to be copied again.
        num_copied: of them those that are taken to be copied, or, once the blocks are there, that are: they
            took no time to make.
        prompts: prompt tokens of the same step.
        prefill_share: of the prompt tokens that a step may hold, those that this one does.
        weights: [R] of each request's tokens, see `dspark.scheduling.weights`; None: all 1.
        num_held: tokens that those that decode hold, together.
        cohort: whose step it is.
        num_cohorts: in flight; with 2 the drafts of this step are made beside the step of the other cohort.
    """

    request_ids: Sequence[str]
    num_asked: Sequence[int]
    prompts: StepLoad = NO_PROMPTS
    prefill_share: float = 0.0
    weights: Floats | None = None
    num_held: int = 0
    cohort: int = 0
    num_cohorts: int = 1
    num_copied: int = 0

    @property
    def context_len(self) -> float:
        """Mean context of those that decode."""
        return self.num_held / len(self.request_ids) if self.request_ids else 0.0

    def load(self, batch_tokens: int) -> StepLoad:
        """What the step computed: its rows beside those of prompts are taken to have the mean context."""
        prompts = self.prompts
        num_scores = (batch_tokens - prompts.batch_tokens) * self.context_len + prompts.num_scores
        return StepLoad(batch_tokens, self.num_held + prompts.num_keys, num_scores)


def step_ahead(
    decoding: Sequence[LiveRequest],
    asks: Mapping[str, DraftRequest],
    prompts: StepLoad,
    prefill_budget: int,
    weights: Floats | None,
    *,
    cohort: int = 0,
    num_cohorts: int = 1,
) -> StepAhead:
    """The step of these requests, of whose drafts `asks` were asked for, beside such prompt tokens."""
    pairs = [(live, asks.get(live.request_id)) for live in decoding]
    copied = [ask.max_copied if ask and live.was_copied else 0 for live, ask in pairs]
    return StepAhead(
        request_ids=[live.request_id for live in decoding],
        num_asked=[
            of_copy or (ask.max_drafts if ask else 0) for (_, ask), of_copy in zip(pairs, copied, strict=True)
        ],
        num_copied=sum(copied),
        prompts=prompts,
        prefill_share=prompts.batch_tokens / prefill_budget,
        weights=weights,
        num_held=sum(live.committed_len for live in decoding),
        cohort=cohort,
        num_cohorts=num_cohorts,
    )


def weights_of(decoding: Sequence[LiveRequest], now_s: float) -> Floats | None:
    """[R] weights of the tokens of these requests in the round that begins now; None where all are 1.

    They follow from tiers, the clock and tokens that earlier rounds committed, never from the drafts of this
    one.
    """
    if not any(live.is_weighed for live in decoding):
        return None
    weights = np.array([live.weight(now_s) for live in decoding])
    return None if (weights == 1.0).all() else weights


def load_of_prompts(chunks: Iterable[tuple[LiveRequest, int]]) -> StepLoad:
    """What the next tokens of prompts, so many of each request, are to a step."""
    num_tokens = num_keys = num_scores = 0
    for live, count in chunks:
        start = live.committed_len - live.num_to_prefill
        num_tokens += count
        num_keys += start + count
        # Each token reads those before it, and itself.
        num_scores += count * start + count * (count + 1) // 2
    return StepLoad(num_tokens, num_keys, num_scores)
