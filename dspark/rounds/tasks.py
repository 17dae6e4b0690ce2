"""What a step is made of: prompt chunks, and requests to verify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dspark.decoding.types import DraftBlock, PrefillItem, TokenIds, VerifyItem
from dspark.rounds.request import LiveRequest
from dspark.rounds.step_ahead import load_of_prompts
from dspark.scheduling.surface import StepLoad

_NO_DRAFTS: TokenIds = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Task:
    """One request's part in a step.

    Attributes:
        num_drafted: drafts that were to be had.
        is_copied: whether they were copied from earlier text, without a pass of a model.
    """

    live: LiveRequest
    item: PrefillItem | VerifyItem
    num_drafted: int = 0
    is_copied: bool = False

    @property
    def num_scheduled(self) -> int:
        """Drafts it has verified."""
        return len(self.item.draft_token_ids) if isinstance(self.item, VerifyItem) else 0


def verify_task(live: LiveRequest, block: DraftBlock | None, num_drafted: int, prefix_len: int) -> Task:
    """Have the prefix of a block verified; without one a plain step.

    Args:
        live: the request.
        block: its drafts.
        num_drafted: those that the output has room for.
        prefix_len: how many of them are scheduled.
    """
    drafts = block.token_ids[:prefix_len] if block else _NO_DRAFTS
    probs = block.probs[:prefix_len] if block else ()
    item = VerifyItem(live.request_id, live.epoch, live.committed_len, drafts, probs)
    return Task(live, item, num_drafted, is_copied=block is not None and block.is_copied)


def load_of_chunks(chunks: Sequence[Task]) -> StepLoad:
    """What the prompt tokens of these parts of a step are to it."""
    return load_of_prompts(
        (one.live, one.item.num_tokens) for one in chunks if isinstance(one.item, PrefillItem)
    )
