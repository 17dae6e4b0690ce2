"""What a right loop must bear: planners and drafters that behave oddly, and change nothing in the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dspark.decoding.types import DraftBlock, DrafterInfo, DraftRequest
from dspark.rounds.interfaces import Drafter
from dspark.rounds.planner import FreePlanner
from dspark.rounds.step_ahead import StepAhead
from dspark.scheduling.draft_length import DraftLength
from dspark.scheduling.ranking import Confidences


class ChangingPlanner(FreePlanner):
    """Another prefix length for each request and round, whatever the confidences, and so causal."""

    def __init__(self, max_len: int) -> None:
        self._num_lens = max_len + 1
        self._num_rounds = 0

    def num_to_draft(self, num_requests: int, num_cohorts: int = 1) -> int:
        """All in one round, half of them in the next, none in the third."""
        self._num_rounds += 1
        return -(-num_requests * (self._num_rounds % 3) // 2)

    def draft_len(self, history: DraftLength, gamma: int) -> int:
        """Another one in every round."""
        return 1 + self._num_rounds % gamma

    def plan(self, step: StepAhead, confidences: Sequence[Confidences]) -> list[int]:
        """By round and place in the batch."""
        return [
            min(len(confidence), (self._num_rounds + 3 * place) % self._num_lens)
            for place, confidence in enumerate(confidences)
        ]


@dataclass(frozen=True, slots=True)
class TellingDrafter:
    """Each of its confidences tells whether the draft before is even: right policies make nothing of it."""

    drafter: Drafter

    async def get_info(self) -> DrafterInfo:
        """See `Drafter`."""
        return await self.drafter.get_info()

    async def draft(self, requests: Sequence[DraftRequest]) -> Sequence[DraftBlock]:
        """See `Drafter`."""
        return [_telling(block) for block in await self.drafter.draft(requests)]

    async def close(self, request_ids: Sequence[str]) -> None:
        """See `Drafter`."""
        await self.drafter.close(request_ids)


def _telling(block: DraftBlock) -> DraftBlock:
    confidence = block.confidence.copy()
    confidence[1:] = np.where(block.token_ids[:-1] % 2 == 0, 0.9, 0.2)
    return replace(block, confidence=confidence)


@dataclass(frozen=True, slots=True)
class UselessDrafter:
    """Drafts the token with the next id instead, which is right by chance only."""

    drafter: Drafter

    async def get_info(self) -> DrafterInfo:
        """See `Drafter`."""
        return await self.drafter.get_info()

    async def draft(self, requests: Sequence[DraftRequest]) -> Sequence[DraftBlock]:
        """See `Drafter`."""
        vocab_size = (await self.drafter.get_info()).vocab_size
        blocks = await self.drafter.draft(requests)
        return [replace(block, token_ids=(block.token_ids + 1) % vocab_size) for block in blocks]

    async def close(self, request_ids: Sequence[str]) -> None:
        """See `Drafter`."""
        await self.drafter.close(request_ids)
