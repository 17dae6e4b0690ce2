"""The draft engine of DSpark drafters: one parallel pass over all blocks, then the sequential head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from dspark.decoding.types import DraftBlock, DraftRequest
from dspark.engine.attention import paged_attention, write_pages
from dspark.engine.block_slots import BlockSlots
from dspark.engine.contexts import ContextSpan, DraftContext
from dspark.engine.draft_base import DraftOptions, PagedDraftEngine, write_layout
from dspark.engine.draft_layers import native_backbone
from dspark.engine.linear import pack_linears
from dspark.engine.pages import PagePool
from dspark.engine.past_blocks import Logits
from dspark.engine.whole_draft import rows_after, whole_draft
from dspark.models.drafter import DSparkDrafter


class DraftEngine(PagedDraftEngine):
    """Drafts whole blocks at once; the slots a short block lacks would have been masks behind the others."""

    def __init__(self, drafter: DSparkDrafter, pool: PagePool, **options: Unpack[DraftOptions]) -> None:
        super().__init__(drafter, pool, options)
        self._drafter = drafter
        self._native = native_backbone(drafter, pool, self._arena)
        if self._native is None:
            pack_linears(drafter.backbone, self._arena)
        # layers and heads in one call, where no request needs anything between them
        self._whole = whole_draft(drafter, self._native, self._heads)

    def _write(self, rows: Tensor, spans: Sequence[ContextSpan]) -> None:
        if self._native is not None:
            self._native.ingest(
                rows, [rows_after(one.context, one.first, one.last - one.first) for one in spans]
            )
            return
        positions, slots = self._places(spans)
        backbone, layout = self._drafter.backbone, write_layout(slots)
        for layer, (key, value) in enumerate(backbone.context_keys_values(backbone.fuse(rows), positions)):
            write_pages(self._pool, layer, key, value, layout)

    def _blocks(
        self, requests: Sequence[DraftRequest], contexts: Sequence[DraftContext], counts: Sequence[int]
    ) -> tuple[list[DraftBlock], list[Logits]]:
        if self._whole is not None and self._whole.can_draft(requests):
            return self._whole.blocks(requests, contexts, counts)
        slots = BlockSlots.of(counts)
        return self._heads.draft(requests, slots, self._run_blocks(requests, contexts, slots))

    def _run_blocks(
        self, requests: Sequence[DraftRequest], contexts: Sequence[DraftContext], slots: BlockSlots
    ) -> Tensor:
        """Hidden states of all block slots, [T, H] (bidirectional inside the block, eq. 3)."""
        lengths = np.array([context.num_computed for context in contexts])
        starts = np.array([context.start for context in contexts])
        index = lengths[slots.request] + slots.offset
        layout = self._layout(contexts, slots, index, (lengths + slots.counts)[slots.request])
        token_ids = np.full(len(index), self._config.mask_token_id)
        token_ids[slots.first[:-1]] = [one.anchor_token for one in requests]
        embeddings = self._drafter.embed(torch.from_numpy(token_ids)).to(self._pool.dtype)
        positions = torch.from_numpy(starts[slots.request] + index)
        if self._native is not None:
            return self._native.blocks(embeddings, positions, layout)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return paged_attention(
                self._pool, layer, query, key, value, layout, scale=self._config.attention_scale
            )

        hidden: Tensor = self._drafter.backbone(embeddings, positions, attend)
        return hidden
