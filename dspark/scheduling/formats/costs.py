"""What a round costs, by its tokens and by its requests: what cost tables of other engines hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dspark.errors import ConfigurationError
from dspark.scheduling.capacity import CapacityCurve

Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Seconds of a round that drafts whole blocks for its requests and verifies some of the drafts.

    Attributes:
        step_cost: (batch tokens, seconds) of a step of the target, anchors and drafts counted.
        draft_cost: (requests, seconds) of drafting a whole block for each; empty where drafts are free.
    """

    step_cost: Points
    draft_cost: Points = ()

    def __post_init__(self) -> None:
        """Refuse what makes no table.

        Raises:
            ConfigurationError: sizes that do not rise, negative or infinite seconds, steps that are flat.
        """
        for name, points in (("step_cost", self.step_cost), ("draft_cost", self.draft_cost)):
            sizes = [size for size, _ in points]
            if sizes != sorted(set(sizes)) or any(size < 0 for size in sizes):
                raise ConfigurationError(f"sizes of {name} must be at least 0 and rise strictly, not {sizes}")
            if not all(0.0 <= seconds < math.inf for _, seconds in points):
                raise ConfigurationError(f"seconds of {name} must be at least 0 and finite: {list(points)}")
        sizes = [size for size, _ in self.step_cost]
        if len(sizes) < 2 or not 0.0 < self.step_cost[0][1] < self.step_cost[-1][1]:
            raise ConfigurationError(
                f"step_cost is flat over the sizes {sizes}: other engines take such a table for one that was "
                "not measured; measure more sizes"
            )

    @classmethod
    def of(
        cls, step_cost: Sequence[tuple[int, float]], draft_cost: Sequence[tuple[int, float]], gamma: int
    ) -> RoundCosts:
        """Take what the engines measured at start, smoothed as the planner smooths it.

        Args:
            step_cost: (batch tokens, seconds), in any order.
            draft_cost: (slots of all blocks, seconds); of these, whole blocks count.
            gamma: slots of a block; at least 1.

        Raises:
            ConfigurationError: the points make no table.
        """
        steps = CapacityCurve.from_points(step_cost)
        drafts: Points = ()
        if draft_cost:
            curve = CapacityCurve.from_points(draft_cost)
            whole = sorted({slots // gamma for slots, _ in draft_cost if slots % gamma == 0})
            drafts = tuple((requests, curve.step_s(requests * gamma)) for requests in whole)
        return cls(tuple(zip(steps.sizes, steps.seconds, strict=True)), drafts)

    def draft_s(self, num_requests: float) -> float:
        """Seconds of drafting for so many requests; linear between points, beyond them that of the last."""
        return _between(self.draft_cost, num_requests) if self.draft_cost else 0.0

    def step_s(self, batch_tokens: float) -> float:
        """Seconds of a step, likewise."""
        return _between(self.step_cost, batch_tokens)


def _between(points: Points, size: float) -> float:
    sizes, seconds = zip(*points, strict=True)
    return float(np.interp(size, sizes, seconds))
