"""Costs as they were measured at start, corrected by every round since.

The engines are measured once, alone and with one kind of context. Later the machine is shared, prompts are
longer, messages travel. Each round tells what its size really cost, and the points of the curve near that
size follow. Only rounds that have ended are looked at, so a plan knows nothing through it of the drafts it
is about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dspark.scheduling.capacity import CapacityCurve

# Share of a round's error that the points nearest to it take over.
_RATE = 0.05
# What a point at a factor of two in size takes over, and what all take over at least: a slower machine is
# slower at every size.
_AT_DOUBLE, _AT_LEAST = 0.5, 0.1
# A round the machine interrupted says little: errors count as no larger than this factor.
_LARGEST_FACTOR = 1.5
# Rounds between two curves.
_ROUNDS_PER_CURVE = 16
_ERROR_RATE = 0.02


class CostModel:
    """Seconds by number of tokens."""

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        """Start from measured (tokens, seconds).

        Raises:
            ConfigurationError: as `CapacityCurve.from_points` says.
        """
        self.curve = CapacityCurve.from_points(points)
        self._log_sizes = np.log2(self.curve.sizes)
        self._log_seconds = np.log(self.curve.seconds)
        self._num_seen = 0
        self.error = 0.0

    def observe(self, num_tokens: int, seconds: float) -> bool:
        """Take in what a round of this size cost.

        Returns:
            Whether `curve` is a new one.
        """
        if num_tokens <= 0 or not seconds > 0.0:
            return False
        off = math.log(seconds / self.curve.step_s(num_tokens))
        # The first rounds count for more, as there is nothing to average them with.
        rate = max(_ERROR_RATE, 1.0 / (self._num_seen + 1))
        self.error += rate * (abs(math.expm1(-off)) - self.error)
        limit = math.log(_LARGEST_FACTOR)
        nearness = _AT_DOUBLE ** np.abs(self._log_sizes - math.log2(num_tokens))
        share = np.maximum(nearness / nearness.max(), _AT_LEAST)
        self._log_seconds += _RATE * max(-limit, min(limit, off)) * share
        self._num_seen += 1
        if self._num_seen % _ROUNDS_PER_CURVE:
            return False
        points = zip(self.curve.sizes, np.exp(self._log_seconds).tolist(), strict=True)
        self.curve = CapacityCurve.from_points(list(points))
        return True
