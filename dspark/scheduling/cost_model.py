"""Costs as they were measured at start, corrected by every round since.

The engines are measured once, alone and with one kind of context. Later the machine is shared, prompts are
longer, messages travel. Each round tells what its size really cost, and the points of the curve near that
size follow. Only rounds that have ended are looked at, so a plan knows nothing through it of the drafts it
is about.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from dspark.scheduling.capacity import CapacityCurve

# Share of a round's error that every size takes over: a machine that is busy is slower at every size.
_COMMON_RATE = 0.03
# Times as much in the first rounds; after so many the surplus has halved.
_FIRST_SURPLUS, _FIRST_ROUNDS = 2.0, 32
# Share that the points around the round's size take over beside it. Single steps differ by a tenth, and plans
# turn on differences of a few percent between neighbouring sizes: these take hundreds of rounds to learn.
_OWN_RATE = 0.004
# A round the machine interrupted says little: errors count as no larger than this factor.
_LARGEST_FACTOR = 1.5
# Rounds between two curves.
_ROUNDS_PER_CURVE = 32
_ERROR_RATE = 0.02


class CostModel:
    """Seconds by number of tokens.

    Each point has a factor of its own and all share one; the errors of rounds move both. An observation costs
    some microseconds, as it is made between two rounds.
    """

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        """Start from measured (tokens, seconds).

        Raises:
            ConfigurationError: as `CapacityCurve.from_points` says.
        """
        self.curve = CapacityCurve.from_points(points)
        self._log_seconds = [math.log(seconds) for seconds in self.curve.seconds]
        # what the shared factor has grown by since the curve was made, as a logarithm
        self._drift = 0.0
        self._num_seen = 0
        self.error = 0.0

    def observe(self, num_tokens: int, seconds: float) -> bool:
        """Take in what a round of this size cost.

        Returns:
            Whether `curve` is a new one.
        """
        if num_tokens <= 0 or not seconds > 0.0:
            return False
        off = math.log(seconds / self.curve.step_s(num_tokens)) - self._drift
        # The first rounds count for more, as there is nothing to average them with.
        rate = max(_ERROR_RATE, 1.0 / (self._num_seen + 1))
        self.error += rate * (abs(math.expm1(-off)) - self.error)
        limit = math.log(_LARGEST_FACTOR)
        off = max(-limit, min(limit, off))
        surplus = 1.0 + _FIRST_SURPLUS * _FIRST_ROUNDS / (_FIRST_ROUNDS + self._num_seen)
        self._drift += surplus * _COMMON_RATE * off
        for index, weight in self._around(num_tokens):
            self._log_seconds[index] += _OWN_RATE * weight * off
        self._num_seen += 1
        if self._num_seen % _ROUNDS_PER_CURVE:
            return False
        self._renew()
        return True

    def _around(self, num_tokens: int) -> Sequence[tuple[int, float]]:
        """The points that the cost of this size is read from, and their weights."""
        sizes = self.curve.sizes
        right = bisect_right(sizes, num_tokens)
        if right == 0 or right == len(sizes):
            return ((max(0, right - 1), 1.0),)
        share = (num_tokens - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        return ((right - 1, 1.0 - share), (right, share))

    def _renew(self) -> None:
        self._log_seconds = [value + self._drift for value in self._log_seconds]
        self._drift = 0.0
        seconds = [math.exp(value) for value in self._log_seconds]
        self.curve = CapacityCurve.from_points(list(zip(self.curve.sizes, seconds, strict=True)))
