"""Which tokens a request holds and how often, without a place for every token of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The distinct tokens of prompt and output; grows with what is committed and is never recounted.

    Attributes:
        token_ids: [U] int64, rising.
        in_output: [U] int64, how often each stands in the output; 0: in the prompt only.
    """

    token_ids: Integers
    in_output: Integers

    @classmethod
    def of(cls, prompt: Sequence[int], output: Sequence[int]) -> TokenCounts:
        """Count once, when a request is opened."""
        token_ids = np.unique(np.asarray(prompt, dtype=np.int64))
        return cls(token_ids, np.zeros_like(token_ids)).extended(output)

    def extended(self, output: Sequence[int]) -> TokenCounts:
        """The counts behind more tokens of the output."""
        new_ids, counts = np.unique(np.asarray(output, dtype=np.int64), return_counts=True)
        missing = new_ids[~self.holds(new_ids)]
        places = np.searchsorted(self.token_ids, missing)
        token_ids = np.insert(self.token_ids, places, missing)
        in_output = np.insert(self.in_output, places, 0)
        in_output[np.searchsorted(token_ids, new_ids)] += counts
        return TokenCounts(token_ids, in_output)

    def holds(self, token_ids: Integers) -> npt.NDArray[np.bool_]:
        """Whether each token has been seen, [len(token_ids)]."""
        if len(self.token_ids) == 0:
            return np.zeros(len(token_ids), dtype=np.bool_)
        found: npt.NDArray[np.bool_] = self.token_ids[self._places(token_ids)] == token_ids
        return found

    def in_output_of(self, token_ids: Integers) -> Integers:
        """How often each token stands in the output, [len(token_ids)]."""
        if len(self.token_ids) == 0:
            return np.zeros(len(token_ids), dtype=np.int64)
        return np.where(self.holds(token_ids), self.in_output[self._places(token_ids)], 0)

    def without(self, token_ids: Integers) -> TokenCounts:
        """All but these distinct tokens."""
        is_kept = np.ones(len(self.token_ids), dtype=np.bool_)
        is_kept[self._places(token_ids[self.holds(token_ids)])] = False
        return TokenCounts(self.token_ids[is_kept], self.in_output[is_kept])

    def _places(self, token_ids: Integers) -> Integers:
        return np.searchsorted(self.token_ids, token_ids).clip(max=len(self.token_ids) - 1)
