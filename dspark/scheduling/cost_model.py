"""Costs as they were measured at start, corrected by every round since.

The engines are measured once and alone. Later the machine is shared, contexts are longer, messages travel.
Each round tells what its size and its context really cost, and what is predicted near that size and that
context follows. Only rounds that have ended are looked at, so a plan knows nothing through it of the drafts
it is about.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.surface import CapacitySurface, StepLoad

# Share of a round's error that every size takes over: a machine that is busy is slower at every size.
_COMMON_RATE = 0.03
# Times as much in the first rounds; after so many the surplus has halved.
_FIRST_SURPLUS, _FIRST_ROUNDS = 2.0, 32
# Contexts have a factor each at this length and at each of its doublings; of what one learns, its neighbours
# learn a half, theirs a quarter: long contexts say little about short ones.
_FIRST_CONTEXT, _NUM_CONTEXTS = 256, 13
_SHARED = 0.5
# Share that the points around the round's size take over beside it. Single steps differ by a tenth, and plans
# turn on differences of a few percent between neighbouring sizes: these take hundreds of rounds to learn.
_OWN_RATE = 0.004
# A round the machine interrupted says little: errors count as no larger than this factor.
_LARGEST_FACTOR = 1.5
# Rounds between two curves.
_ROUNDS_PER_CURVE = 32
_ERROR_RATE = 0.02


class CostModel:
    """Seconds by number of tokens and context.

    Each point of the curve has a factor of its own, each doubling of the context has one for all points; the
    errors of rounds move both. An observation costs some microseconds, as it is made between two rounds.
    """

    def __init__(self, surface: CapacitySurface) -> None:
        """Start from measured costs."""
        self.surface = surface
        self._log_seconds = [math.log(seconds) for seconds in surface.rows.seconds]
        # by context, as logarithms
        self._factors = [0.0] * _NUM_CONTEXTS
        self._num_seen = 0
        self.error = 0.0

    def step_s(self, load: StepLoad) -> float:
        """Seconds of such a step."""
        return self._factor(load.context_len) * self.surface.step_s(load)

    def curve(self, num_requests: int, context_len: float, *, draft_s: float = 0.0) -> CapacityCurve:
        """The curve of rounds of so many requests that hold `context_len` tokens each."""
        scale = self._factor(context_len)
        return self.surface.at(num_requests, context_len, scale=scale, draft_s=draft_s)

    def prompt_s(self, prompts: StepLoad, context_len: float) -> float:
        """Seconds that prompt tokens attend longer than as many rows of such a curve; may be below 0."""
        return self._factor(context_len) * (
            self.surface.attention_s(prompts) - self.surface.score_s * context_len * prompts.batch_tokens
        )

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Take in what a round with this load cost."""
        if load.batch_tokens <= 0 or not seconds > 0.0:
            return
        rows_s, attention_s = self.surface.rows.step_s(load.batch_tokens), self.surface.attention_s(load)
        place = _place(load.context_len)
        off = math.log(seconds / (rows_s + attention_s)) - self._log_factor(place)
        # The first rounds count for more, as there is nothing to average them with.
        rate = max(_ERROR_RATE, 1.0 / (self._num_seen + 1))
        self.error += rate * (abs(math.expm1(-off)) - self.error)
        limit = math.log(_LARGEST_FACTOR)
        off = max(-limit, min(limit, off))
        surplus = 1.0 + _FIRST_SURPLUS * _FIRST_ROUNDS / (_FIRST_ROUNDS + self._num_seen)
        self._factors = [
            factor + surplus * _COMMON_RATE * off * _SHARED ** abs(number - place)
            for number, factor in enumerate(self._factors)
        ]
        # Attention's part of the step says nothing about the size.
        own = _OWN_RATE * off * rows_s / (rows_s + attention_s)
        for index, weight in self._around(load.batch_tokens):
            self._log_seconds[index] += own * weight
        self._num_seen += 1
        if self._num_seen % _ROUNDS_PER_CURVE == 0:
            self._renew()

    def _factor(self, context_len: float) -> float:
        return math.exp(self._log_factor(_place(context_len)))

    def _log_factor(self, place: float) -> float:
        left = min(int(place), _NUM_CONTEXTS - 2)
        share = place - left
        return (1.0 - share) * self._factors[left] + share * self._factors[left + 1]

    def _around(self, num_tokens: int) -> Sequence[tuple[int, float]]:
        """The points that the cost of this size is read from, and their weights."""
        sizes = self.surface.rows.sizes
        right = bisect_right(sizes, num_tokens)
        if right == 0 or right == len(sizes):
            return ((max(0, right - 1), 1.0),)
        share = (num_tokens - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        return ((right - 1, 1.0 - share), (right, share))

    def _renew(self) -> None:
        seconds = [math.exp(value) for value in self._log_seconds]
        points = list(zip(self.surface.rows.sizes, seconds, strict=True))
        self.surface = replace(self.surface, rows=CapacityCurve.from_points(points))


def _place(context_len: float) -> float:
    """Among the contexts with factors, 0 to the last."""
    if context_len <= _FIRST_CONTEXT:
        return 0.0
    return min(math.log2(context_len / _FIRST_CONTEXT), _NUM_CONTEXTS - 1.0)
