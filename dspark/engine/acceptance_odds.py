"""How likely drafts are to be accepted, counted from what became of earlier ones.

Losslessness: counts are of earlier rounds only, and what a chance hangs on is known from the committed text.
So it says nothing of the draft it is about, nor of what the target is about to choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from dspark.engine.ngrams import LONGEST_MATCH

Floats = npt.NDArray[np.float64]

# Matches of so many tokens and more are told apart.
_LENGTHS = np.array([0, 1, 2, 3, 4, 6, 8, 12, LONGEST_MATCH])
# Outcomes of one kind after which an old one counts for 1 / e.
_MEMORY = 1000.0
# How many outcomes the rate of the coarser kind is worth beside those of a finer kind.
_PRIOR = 8.0
_NUM_BINS = 15


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
        self._all = np.zeros(2)
        # decayed sums by position and bin: predicted, right, number
        self._bins = np.zeros((3, gamma, _NUM_BINS))
        self._positions = np.arange(gamma)

    def chances(self, match_len: int, lately: Lately, count: int) -> Floats:
        """Conditional chances of the first `count` drafts of a block, [count], each within (0, 1)."""
        return self._chances(match_len, lately)[:count]

    def observe(self, match_len: int, lately: Lately, num_right: int, num_tried: int) -> None:
        """Take in a block of which `num_tried` drafts were put to the test.

        Args:
            match_len: tokens before the block that stood in the text before; 0: none.
            lately: as it was when the block was made.
            num_right: drafts before the first wrong one.
            num_tried: `num_right`, or one more where the next one was wrong.
        """
        assert num_right <= num_tried <= num_right + 1, (num_right, num_tried)
        predicted = self._chances(match_len, lately)
        length = _length_class(match_len)
        for position in range(num_tried):
            is_right = float(position < num_right)
            self._note(position, float(predicted[position]), is_right)
            grown = _length_class(match_len + position)
            for counts in (
                self._fine[:, lately, length, position],
                self._coarse[:, min(position, 1), grown],
                self._all,
            ):
                counts *= 1.0 - 1.0 / _MEMORY
                counts += (is_right, 1.0)

    def errors(self) -> Sequence[float]:
        """Calibration error of the conditional chances at each position lately, [G]; 0 without any."""
        predicted, right, number = self._bins
        gaps = np.abs(predicted - right).sum(axis=1)
        errors: list[float] = (gaps / np.maximum(number.sum(axis=1), 1e-9)).tolist()
        return errors

    def _chances(self, match_len: int, lately: Lately) -> Floats:
        mean = (self._all[0] + 1.0) / (self._all[1] + 2.0)
        grown = _LENGTHS.searchsorted(match_len + self._positions, side="right") - 1
        coarse = _leaning(self._coarse[:, np.minimum(self._positions, 1), grown], mean)
        return _leaning(self._fine[:, lately, _length_class(match_len)], coarse)

    def _note(self, position: int, predicted: float, is_right: float) -> None:
        self._bins[:, position] *= 1.0 - 1.0 / _MEMORY
        place = min(int(predicted * _NUM_BINS), _NUM_BINS - 1)
        self._bins[:, position, place] += (predicted, is_right, 1.0)


def _length_class(match_len: int) -> int:
    return int(_LENGTHS.searchsorted(match_len, side="right")) - 1


def _leaning(counts: Floats, rate: Floats | float) -> Floats:
    """The rate of (right, tried) counts, to which another rate adds some outcomes."""
    result: Floats = (counts[0] + _PRIOR * rate) / (counts[1] + _PRIOR)
    return result
