"""How likely drafts are to be accepted, counted from what became of earlier ones.

Losslessness: counts are of earlier rounds only, and what a chance hangs on is known from the committed text.
So it says nothing of the draft it is about, nor of what the target is about to choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.engine.ngrams import LONGEST_MATCH

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

# Matches of so many tokens and more are told apart.
_LENGTHS = np.array([0, 1, 2, 3, 4, 6, 8, 12, LONGEST_MATCH])
# Outcomes of one kind after which an old one counts for 1 / e.
_MEMORY = 1000.0
# How many outcomes the rate of the coarser kind is worth beside those of a finer kind.
_PRIOR = 8.0
_NUM_BINS = 15
# Blocks that are counted at once.
_BATCH = 32


class Lately(IntEnum):
    """What became of the first draft of the last block, of those of one request whose outcome is known."""

    UNKNOWN = 0
    WRONG = 1
    RIGHT = 2


class AcceptanceOdds:
    """Chances that draft k of a block is accepted, given that those before it were.

    Counted by position, by how much of the text before the block stood there before, and by what became of
    the last block. What was seen seldom leans on the tokens that stood there before together with the
    accepted drafts, and that on the mean of all.
    """

    def __init__(self, gamma: int) -> None:
        num_lengths = len(_LENGTHS)
        # (right, tried), each by what a chance hangs on
        self._fine = np.zeros((2, len(Lately), num_lengths, gamma))
        self._coarse = np.zeros((2, 2, num_lengths))
        self._all = np.zeros((2, 1))
        # decayed sums by position and bin: predicted, right, number
        self._bins = np.zeros((3, gamma, _NUM_BINS))
        self._positions = np.arange(gamma)
        # (match_len, lately, num_right, num_tried) of blocks that are not counted yet
        self._waiting: list[tuple[int, int, int, int]] = []
        self._num_blocks = 0
        self._cached: dict[tuple[int, int], Floats] = {}

    def chances(self, match_len: int, lately: Lately, count: int) -> Floats:
        """Conditional chances of the first `count` drafts of a block, [count], each within (0, 1)."""
        return self._chances(match_len, lately)[:count]

    def observe(self, match_len: int, lately: Lately, num_right: int, num_tried: int) -> None:
        """Take in a block of which `num_tried` drafts were put to the test; at first at once, later by some.

        Args:
            match_len: tokens before the block that stood in the text before; 0: none.
            lately: as it was when the block was made.
            num_right: drafts before the first wrong one.
            num_tried: `num_right`, or one more where the next one was wrong.
        """
        assert num_right <= num_tried <= num_right + 1, (num_right, num_tried)
        self._waiting.append((match_len, int(lately), num_right, num_tried))
        if len(self._waiting) > min(self._num_blocks, _BATCH):
            self._num_blocks += len(self._waiting)
            self._count(np.array(self._waiting))
            self._waiting = []
            self._cached = {}

    def errors(self) -> Sequence[float]:
        """Calibration error of the conditional chances at each position lately, [G]; 0 without any."""
        predicted, right, number = self._bins
        gaps = np.abs(predicted - right).sum(axis=1)
        errors: list[float] = (gaps / np.maximum(number.sum(axis=1), 1e-9)).tolist()
        return errors

    def _chances(self, match_len: int, lately: int) -> Floats:
        """Of all drafts of a block, [G]."""
        found = self._cached.get((match_len, lately))
        if found is None:
            mean = (self._all[0, 0] + 1.0) / (self._all[1, 0] + 2.0)
            grown = _length_class(match_len + self._positions)
            coarse = _leaning(self._coarse[:, np.minimum(self._positions, 1), grown], mean)
            found = _leaning(self._fine[:, lately, _length_class(match_len)], coarse)
            self._cached[match_len, lately] = found
        return found

    def _count(self, blocks: npt.NDArray[np.int64]) -> None:  # [N, 4], as they wait
        match_lens, lately, num_right, num_tried = blocks.T
        rows = np.repeat(np.arange(len(blocks)), num_tried)
        positions = np.arange(len(rows)) - np.repeat(np.cumsum(num_tried) - num_tried, num_tried)
        right = (positions < num_right[rows]).astype(np.float64)
        predicted = np.stack([self._chances(*block) for block in blocks[:, :2].tolist()])[rows, positions]
        tried = np.ones_like(right)
        places = np.minimum((predicted * _NUM_BINS).astype(np.int64), _NUM_BINS - 1)
        _add(self._bins, (positions, places), (predicted, right, tried))
        lengths = _length_class(match_lens)[rows]
        _add(self._fine, (lately[rows], lengths, positions), (right, tried))
        grown = _length_class(match_lens[rows] + positions)
        _add(self._coarse, (np.minimum(positions, 1), grown), (right, tried))
        _add(self._all, (np.zeros_like(positions),), (right, tried))


def _add(sums: Floats, places: tuple[Integers, ...], values: tuple[Floats, ...]) -> None:
    """Add values to the sums of their places; what is there fades with each that comes.

    Args:
        sums: [len(values), ...], changed.
        places: one index [N] for each further dimension of the sums.
        values: each [N].
    """
    shape = sums.shape[1:]
    flat = np.ravel_multi_index(places, shape)
    sums *= np.exp(-np.bincount(flat, minlength=sums[0].size) / _MEMORY).reshape(shape)
    for row, added in zip(sums, values, strict=True):
        row += np.bincount(flat, weights=added, minlength=row.size).reshape(shape)


def _length_class(match_len: Integers | int) -> Any:
    """Which of the lengths that are told apart, of one or of many."""
    return _LENGTHS.searchsorted(match_len, side="right") - 1


def _leaning(counts: Floats, rate: Floats | float) -> Floats:
    """The rate of (right, tried) counts, to which another rate adds some outcomes."""
    result: Floats = (counts[0] + _PRIOR * rate) / (counts[1] + _PRIOR)
    return result
