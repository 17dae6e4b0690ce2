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
from torch import Tensor

from dspark.decoding.types import DraftBlock, DraftRequest
from dspark.engine.attention import paged_attention, write_pages
from dspark.engine.block_slots import BlockSlots, Integers
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
        pack_linears(drafter.backbone, self._arena)

    def _write(self, rows: Tensor, spans: Sequence[ContextSpan], positions: Tensor, slots: Tensor) -> None:
        following = [token for one in spans for token in one.context.token_ids[one.first + 1 : one.last + 1]]
        states, embeddings = self._drafter.first_states(rows), self._embed(torch.tensor(following))
        key, value = self._drafter.backbone.keys_values(embeddings, states, positions)
        write_pages(self._pool, 0, key, value, write_layout(slots))

    def _blocks(
        self, requests: Sequence[DraftRequest], contexts: Sequence[DraftContext], slots: BlockSlots
    ) -> tuple[list[DraftBlock], Logits]:
        rows = np.concatenate([joined(context.pending) for context in contexts])
        state = self._drafter.first_states(feature_rows(rows).to(self._pool.dtype))
        drafting = np.arange(len(contexts))

        def advance(step: int, kept: Integers, previous: Tensor) -> Tensor:
            nonlocal state, drafting
            drafting = drafting[kept]
            members = [contexts[number] for number in drafting.tolist()]
            state = self._step(members, step, previous, state[torch.from_numpy(kept)])
            hidden: Tensor = self._drafter.backbone.norm(state)
            return hidden

        return self._heads.draft_by_steps(requests, slots, advance)

    def _step(self, contexts: Sequence[DraftContext], step: int, previous: Tensor, states: Tensor) -> Tensor:
        """One step of one block per context: tokens before [n] and states before [n, H] to states [n, H]."""
        index = np.array([context.num_computed for context in contexts]) + step
        layout = self._layout(contexts, BlockSlots.of([1] * len(contexts)), index, index + 1)
        positions = index + np.array([context.start for context in contexts])

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            scale = self._config.attention_scale
            return paged_attention(self._pool, layer, query, key, value, layout, scale=scale)

        after: Tensor = self._drafter.backbone(
            self._embed(previous), states, torch.from_numpy(positions), attend
        )
        return after

    def _embed(self, token_ids: Tensor) -> Tensor:
        """Tokens [n] to [n, H], in the dtype of the pages."""
        return self._drafter.embed(token_ids).to(self._pool.dtype)
