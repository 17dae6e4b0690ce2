"""Which slots the blocks of a draft have: as many per request as it asks for, all flattened into one row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BlockSlots:
    """The slots of R blocks, T together.

    Attributes:
        counts: [R] slots of each block.
        first: [R + 1] where each block begins, then T.
        request: [T] block of each slot.
        offset: [T] place of each slot in its block.
    """

    counts: Integers
    first: Integers
    request: Integers
    offset: Integers

    @classmethod
    def of(cls, counts: Sequence[int]) -> BlockSlots:
        """Slots of blocks of these lengths."""
        counted = np.array(counts, dtype=np.int64)
        first = np.concatenate(([0], np.cumsum(counted)))
        request = np.repeat(np.arange(len(counted)), counted)
        return cls(counted, first, request, np.arange(first[-1]) - first[request])

    def rows(self, request: int) -> slice:
        """Where the slots of one block are."""
        return slice(int(self.first[request]), int(self.first[request + 1]))

    def steps(self) -> Iterator[tuple[Integers, Integers]]:
        """For each offset in the blocks: the slots that have it, and their places among those before.

        The places of the first step are those of the requests.
        """
        requests = np.arange(len(self.counts))
        for step in range(int(self.counts.max())):
            kept = np.flatnonzero(self.counts[requests] > step)
            requests = requests[kept]
            yield self.first[requests] + step, kept

    def of_requests(self, requests: Integers) -> tuple[BlockSlots, Tensor]:
        """The slots of some blocks only, and where they are among all."""
        part = BlockSlots.of(self.counts[requests].tolist())
        return part, torch.from_numpy(self.first[requests][part.request] + part.offset)
