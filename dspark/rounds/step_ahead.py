"""The step that a round plans, as far as it is known before any of its drafts are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dspark.decoding.types import DraftRequest
from dspark.rounds.request import LiveRequest
from dspark.scheduling.ranking import Floats


@dataclass(frozen=True, slots=True)
class StepAhead:
    """What a plan is made for.

    Attributes:
        request_ids: of those that decode, in order of arrival.
        num_asked: drafts asked for, by request; 0 where it gets no block.
        num_prefill_tokens: prompt tokens of the same step.
        prefill_share: of the prompt tokens that a step may hold, those that this one does.
        weights: [R] of each request's tokens, see `dspark.scheduling.weights`; None: all 1.
        cohort: whose step it is.
        num_cohorts: in flight; with 2 the drafts of this step are made beside the step of the other cohort.
    """

    request_ids: Sequence[str]
    num_asked: Sequence[int]
    num_prefill_tokens: int = 0
    prefill_share: float = 0.0
    weights: Floats | None = None
    cohort: int = 0
    num_cohorts: int = 1


def step_ahead(
    decoding: Sequence[LiveRequest],
    asks: Mapping[str, DraftRequest],
    num_prefill_tokens: int,
    prefill_budget: int,
    weights: Floats | None,
    *,
    cohort: int = 0,
    num_cohorts: int = 1,
) -> StepAhead:
    """The step of these requests, of whose drafts `asks` were asked for, beside so many prompt tokens."""
    return StepAhead(
        request_ids=[live.request_id for live in decoding],
        num_asked=[asks[live.request_id].max_drafts if live.request_id in asks else 0 for live in decoding],
        num_prefill_tokens=num_prefill_tokens,
        prefill_share=num_prefill_tokens / prefill_budget,
        weights=weights,
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
