"""Plans one ragged step: which tokens of which requests are computed, and which logits are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dspark.decoding.acceptance import Judgement
from dspark.decoding.types import PrefillItem, TokenIds, VerifyItem, VerifyOutcome, VerifyStatus
from dspark.engine.attention import RaggedLayout
from dspark.engine.layout import Span, causal_layout
from dspark.engine.pages import OutOfPagesError
from dspark.engine.requests import HeldRequest, Limits, RequestTable
from dspark.errors import ContextTooLongError, InvalidRequestError

StepItem = PrefillItem | VerifyItem

_NO_DRAFTS: TokenIds = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Segment:
    """The consecutive rows of one request in a step.

    Attributes:
        item: index of the item it answers.
        held: the request.
        start: absolute position of the first row.
        first_row: its row in the step.
        token_ids: one per row.
        num_logits: how many of its last rows need logits; 0 while more of the prompt remains.
        drafts: the item when it verifies, None when it prefills.
    """

    item: int
    held: HeldRequest
    start: int
    first_row: int
    token_ids: Sequence[int]
    num_logits: int
    drafts: VerifyItem | None

    @property
    def num_rows(self) -> int:
        """Tokens of the segment."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """All segments of a step and what could not be computed.

    Attributes:
        segments: in the order of their rows.
        refused: outcome by item index for items without a segment.
    """

    segments: tuple[Segment, ...]
    refused: dict[int, VerifyOutcome]

    @property
    def num_rows(self) -> int:
        """Flattened tokens of the step, T."""
        return sum(segment.num_rows for segment in self.segments)

    def index_tensors(self, page_size: int) -> tuple[Tensor, Tensor, RaggedLayout]:
        """Token ids [T], positions [T] and the layout of the rows."""
        spans = [Span(segment.start, segment.num_rows, segment.held.pages) for segment in self.segments]
        positions, layout = causal_layout(spans, page_size)
        token_ids = [token for segment in self.segments for token in segment.token_ids]
        return torch.tensor(token_ids), positions, layout

    def logit_rows(self) -> list[int]:
        """Rows of the step that need logits, in order of the segments."""
        return [
            row
            for segment in self.segments
            for row in range(
                segment.first_row + segment.num_rows - segment.num_logits,
                segment.first_row + segment.num_rows,
            )
        ]

    def judgements(self) -> list[Judgement]:
        """One for each segment with logits, in order; rows count the rows of `logit_rows`."""
        found, first_row = [], 0
        for segment in self.segments:
            if segment.num_logits == 0:
                continue
            found.append(
                Judgement(
                    first_row=first_row,
                    base_committed_len=segment.held.committed_len,
                    draft_token_ids=segment.drafts.draft_token_ids if segment.drafts else _NO_DRAFTS,
                    draft_probs=segment.drafts.draft_probs if segment.drafts else (),
                    sampling=segment.held.sampling,
                    adjuster=segment.held.adjuster,
                )
            )
            first_row += segment.num_logits
        return found


def plan_batch(items: Sequence[StepItem], table: RequestTable, limits: Limits) -> Batch:
    """Decide what a step computes and take the pages it needs.

    Raises:
        InvalidRequestError: an item asks for no tokens, or drafts a token the target does not know.
        ContextTooLongError: an item goes beyond the context.
    """
    for item in items:
        _check_item(item, limits)
    segments: list[Segment] = []
    refused: dict[int, VerifyOutcome] = {}
    seen: set[str] = set()
    first_row = 0
    for index, item in enumerate(items):
        held = table.get(item.request_id)
        segment = None if held is None else _segment(index, item, held, first_row)
        if held is None:
            refused[index] = refusal(item, VerifyStatus.UNKNOWN, 0)
        elif segment is None or item.request_id in seen:
            refused[index] = refusal(item, VerifyStatus.STALE, held.committed_len)
        else:
            try:
                table.reserve(held, segment.start + segment.num_rows)
            except OutOfPagesError:
                refused[index] = refusal(item, VerifyStatus.OUT_OF_PAGES, held.committed_len)
                continue
            seen.add(item.request_id)
            segments.append(segment)
            first_row += segment.num_rows
    return Batch(tuple(segments), refused)


def refusal(item: StepItem, status: VerifyStatus, committed_len: int) -> VerifyOutcome:
    """The outcome of an item for which nothing was done."""
    base = item.base_committed_len if isinstance(item, VerifyItem) else committed_len
    return VerifyOutcome(item.request_id, item.epoch, base, status)


def _check_item(item: StepItem, limits: Limits) -> None:
    if isinstance(item, PrefillItem):
        if item.num_tokens < 1:
            raise InvalidRequestError(
                f"num_tokens is {item.num_tokens}; prefill at least one token", "num_tokens"
            )
        return
    drafts = item.draft_token_ids
    if len(drafts) and not 0 <= int(drafts.min()) <= int(drafts.max()) < limits.vocab_size:
        raise InvalidRequestError(
            f"draft_token_ids must lie in [0, {limits.vocab_size}); the drafter is for another target",
            "draft_token_ids",
        )
    if item.base_committed_len + len(drafts) > limits.max_context_len:
        raise ContextTooLongError(
            f"request {item.request_id!r} would reach position {item.base_committed_len + len(drafts)}, "
            f"the context holds {limits.max_context_len}",
            "draft_token_ids",
        )


def _segment(index: int, item: StepItem, held: HeldRequest, first_row: int) -> Segment | None:
    """The rows this item asks for; None: it was made for another state of the request."""
    if item.epoch != held.epoch:
        return None
    if isinstance(item, PrefillItem):
        if not held.is_prefilling:
            return None
        end = min(held.num_computed + item.num_tokens, held.prefill_len)
        tokens = held.token_ids[held.num_computed : end]
        num_logits = 1 if end == held.prefill_len else 0
        return Segment(index, held, held.num_computed, first_row, tokens, num_logits, None)
    if held.is_prefilling or item.base_committed_len != held.committed_len:
        return None
    tokens = [held.token_ids[-1], *item.draft_token_ids.tolist()]
    return Segment(index, held, held.committed_len - 1, first_row, tokens, len(tokens), item)
