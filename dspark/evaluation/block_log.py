"""Watches the blocks between drafter and loop, and joins them with what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dspark.decoding.types import DraftBlock, DrafterInfo, DraftRequest
from dspark.evaluation.generation import Generation
from dspark.rounds.interfaces import Drafter


class BlockLog:
    """A `Drafter` that remembers every block it passes on, without draft distributions."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        # by request and number of committed tokens
        self._blocks: dict[tuple[str, int], DraftBlock] = {}

    async def get_info(self) -> DrafterInfo:
        """See `Drafter`."""
        return await self._drafter.get_info()

    async def draft(self, requests: Sequence[DraftRequest]) -> Sequence[DraftBlock]:
        """See `Drafter`."""
        blocks = await self._drafter.draft(requests)
        for block in blocks:
            self._blocks[block.request_id, block.base_committed_len] = replace(block, probs=())
        return blocks

    async def close(self, request_ids: Sequence[str]) -> None:
        """See `Drafter`."""
        await self._drafter.close(request_ids)

    def block(self, request_id: str, base_committed_len: int) -> DraftBlock | None:
        """The block made for a request that had so many committed tokens; None where there was none."""
        return self._blocks.get((request_id, base_committed_len))

    def outcomes(
        self, generations: Sequence[Generation], prompt_lens: Sequence[int], gamma: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Confidences and survivals of the whole blocks that were verified whole, both [N, G].

        The last round of an output is left out: where the output ended inside the block, nobody knows what
        would have become of the drafts behind.
        """
        confidences, survivals = [], []
        for one, prompt_len in zip(generations, prompt_lens, strict=True):
            for delta in one.rounds:
                block = self.block(one.request_id, prompt_len + delta.start)
                if block is None or delta.finish_reason is not None:
                    continue
                if not len(block.confidence) == delta.round.num_scheduled == gamma:
                    continue
                confidences.append(block.confidence)
                survivals.append((np.arange(gamma) < delta.round.num_accepted).astype(np.float32))
        if not confidences:
            empty = np.zeros((0, gamma), dtype=np.float32)
            return empty, empty
        return np.stack(confidences), np.stack(survivals)
