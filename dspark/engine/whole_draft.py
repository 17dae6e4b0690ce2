"""Greedy blocks by one native call, from the contexts of their requests to calibrated confidences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dspark.decoding.types import Acceptance, DraftBlock, DraftRequest
from dspark.engine.contexts import DraftContext
from dspark.engine.draft_heads import DraftHeads
from dspark.engine.draft_layers import NativeBackbone
from dspark.engine.kernels.context_rows import FollowingRows
from dspark.engine.kernels.draft import NativeDraft
from dspark.engine.past_blocks import Logits
from dspark.models.drafter import DSparkDrafter


class WholeDraft:
    """Layers and heads of a drafter as one call."""

    def __init__(self, native: NativeDraft, heads: DraftHeads, gamma: int) -> None:
        self._native, self._heads = native, heads
        self._offsets = np.arange(gamma)

    @staticmethod
    def can_draft(requests: Sequence[DraftRequest]) -> bool:
        """Whether all these requests want the greatest of the drafter's own logits drafted."""
        return all(
            one.sampling.acceptance is Acceptance.GREEDY
            and (one.sampling.adjustments is None or not one.sampling.adjustments.logit_bias)
            for one in requests
        )

    def blocks(
        self, requests: Sequence[DraftRequest], contexts: Sequence[DraftContext], counts: Sequence[int]
    ) -> tuple[list[DraftBlock], list[Logits]]:
        """A block of so many slots for each request, and its confidence logits."""
        rows = [
            rows_after(context, context.num_computed, count)
            for context, count in zip(contexts, counts, strict=True)
        ]
        token_ids, logits = self._native.run(rows, [one.anchor_token for one in requests])
        offsets = np.concatenate([self._offsets[:count] for count in counts])
        confidence = self._heads.calibration.greedy.at(offsets, logits).astype(np.float32)
        drafted = token_ids.astype(np.int32)
        blocks, found, first = [], [], 0
        for one, count in zip(requests, counts, strict=True):
            mine = slice(first, first + count)
            blocks.append(
                DraftBlock(one.request_id, one.epoch, one.base_committed_len, drafted[mine], confidence[mine])
            )
            found.append(logits[mine])
            first += count
        return blocks, found


def whole_draft(
    drafter: DSparkDrafter, backbone: NativeBackbone | None, heads: DraftHeads
) -> WholeDraft | None:
    """Both in one call where both are native; None: they have calls of their own."""
    parts = heads.native
    if backbone is None or parts is None:
        return None
    native = backbone.with_heads(drafter, parts)
    return None if native is None else WholeDraft(native, heads, drafter.config.gamma)


def rows_after(context: DraftContext, length: int, num_rows: int) -> FollowingRows:
    """So many rows behind the first `length` ones of a context."""
    return FollowingRows(context.pages, context.start, length, num_rows)
