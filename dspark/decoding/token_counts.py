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
        grown = self.with_places(new_ids)
        in_output = grown.in_output.copy()
        in_output[np.searchsorted(grown.token_ids, new_ids)] += counts
        return TokenCounts(grown.token_ids, in_output)

    def with_places(self, token_ids: Integers) -> TokenCounts:
        """The same counts with a place, at first of count 0, for each of these distinct tokens."""
        missing = token_ids[~self.holds(token_ids)]
        places = np.searchsorted(self.token_ids, missing)
        return TokenCounts(np.insert(self.token_ids, places, missing), np.insert(self.in_output, places, 0))

    def holds(self, token_ids: Integers) -> npt.NDArray[np.bool_]:
        """Whether each token has a place, [len(token_ids)]."""
        if len(self.token_ids) == 0:
            return np.zeros(len(token_ids), dtype=np.bool_)
        places = np.searchsorted(self.token_ids, token_ids).clip(max=len(self.token_ids) - 1)
        found: npt.NDArray[np.bool_] = self.token_ids[places] == token_ids
        return found
