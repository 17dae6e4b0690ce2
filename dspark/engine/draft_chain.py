"""The draft engine of chain drafters (Eagle3, MTP): draft after draft, all requests side by side.

In pages are keys and values of pairs: the target's feature of a position and the token that follows it. The
last feature waits for its token, which is the anchor and comes with the request. Steps beyond it go through
states of the drafter's own; what they write is overwritten once the target's features are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np
import torch
from torch import Tensor, nn

from dspark.decoding.types import DraftBlock, DraftRequest
from dspark.engine.attention import paged_attention, write_pages
from dspark.engine.block_slots import BlockSlots, Integers
from dspark.engine.chain_layers import native_chain
from dspark.engine.contexts import ContextSpan, DraftContext
from dspark.engine.draft_base import DraftOptions, PagedDraftEngine, joined, write_layout
from dspark.engine.linear import pack_linears
from dspark.engine.pages import PagePool
from dspark.engine.past_blocks import Logits
from dspark.engine.taps import feature_rows
from dspark.models.chain import ChainDrafter


class ChainDraftEngine(PagedDraftEngine):
    """Drafts one token of every block per step."""

    _rows_held_back = 1

    def __init__(self, drafter: ChainDrafter, pool: PagePool, **options: Unpack[DraftOptions]) -> None:
        super().__init__(drafter, pool, options)
        self._drafter = drafter
        self._native = native_chain(drafter, pool, self._arena)
        if self._native is not None:  # which holds the layer, packed
            drafter.backbone.layers = nn.ModuleList()
        pack_linears(drafter.backbone, self._arena)

    def _write(self, rows: Tensor, spans: Sequence[ContextSpan]) -> None:
        positions, slots = self._places(spans)
        following = [token for one in spans for token in one.context.token_ids[one.first + 1 : one.last + 1]]
        states, embeddings = self._drafter.first_states(rows), self._embed(torch.tensor(following))
        backbone = self._native or self._drafter.backbone
        key, value = backbone.keys_values(embeddings, states, positions)
        write_pages(self._pool, 0, key, value, write_layout(slots))

    def _blocks(
        self, requests: Sequence[DraftRequest], contexts: Sequence[DraftContext], counts: Sequence[int]
    ) -> tuple[list[DraftBlock], list[Logits]]:
        rows = np.concatenate([joined(context.pending) for context in contexts])
        state = self._drafter.first_states(feature_rows(rows).to(self._pool.dtype))
        drafting = np.arange(len(contexts))

        def advance(step: int, kept: Integers, previous: Tensor) -> Tensor:
            nonlocal state, drafting
            drafting = drafting[kept]
            members = [contexts[number] for number in drafting.tolist()]
            state, hidden = self._step(members, step, previous, state[torch.from_numpy(kept)])
            return hidden

        return self._heads.draft_by_steps(requests, BlockSlots.of(counts), advance)

    def _step(
        self, contexts: Sequence[DraftContext], step: int, previous: Tensor, states: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One step of one block per context.

        Args:
            contexts: of the blocks.
            step: offset in the blocks.
            previous: [n] tokens before.
            states: [n, H] before, which may be overwritten.

        Returns:
            The next states before and after the last norm, [n, H] each.
        """
        index = np.array([context.num_computed for context in contexts]) + step
        layout = self._layout(contexts, BlockSlots.of([1] * len(contexts)), index, index + 1)
        positions = torch.from_numpy(index + np.array([context.start for context in contexts]))
        if self._native is not None:
            return self._native.step(self._embed(previous), states, positions, layout)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            scale = self._config.attention_scale
            return paged_attention(self._pool, layer, query, key, value, layout, scale=scale)

        backbone = self._drafter.backbone
        after: Tensor = backbone(self._embed(previous), states, positions, attend)
        return after, backbone.norm(after)

    def _embed(self, token_ids: Tensor) -> Tensor:
        """Tokens [n] to [n, H], in the dtype of the pages."""
        return self._drafter.embed(token_ids).to(self._pool.dtype)
