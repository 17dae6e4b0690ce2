"""Watches the blocks between drafter and loop, and joins them with what became of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dspark.decoding.types import DraftBlock, DrafterInfo, DraftRequest
from dspark.evaluation.generation import Generation
from dspark.rounds.interfaces import Drafter


class BlockLog:
    """A `Drafter` that remembers the confidences of every block it passes on."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        # by request and number of committed tokens
        self._confidences: dict[tuple[str, int], npt.NDArray[np.float32]] = {}

    async def get_info(self) -> DrafterInfo:
        """See `Drafter`."""
        return await self._drafter.get_info()

    async def draft(self, requests: Sequence[DraftRequest]) -> Sequence[DraftBlock]:
        """See `Drafter`."""
        blocks = await self._drafter.draft(requests)
        for block in blocks:
            self._confidences[block.request_id, block.base_committed_len] = block.confidence
        return blocks

    async def close(self, request_ids: Sequence[str]) -> None:
        """See `Drafter`."""
        await self._drafter.close(request_ids)

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
                confidence = self._confidences.get((one.request_id, prompt_len + delta.start))
                is_whole = confidence is not None and len(confidence) == delta.round.num_scheduled == gamma
                if confidence is None or not is_whole or delta.finish_reason is not None:
                    continue
                confidences.append(confidence)
                survivals.append((np.arange(gamma) < delta.round.num_accepted).astype(np.float32))
        if not confidences:
            empty = np.zeros((0, gamma), dtype=np.float32)
            return empty, empty
        return np.stack(confidences), np.stack(survivals)
