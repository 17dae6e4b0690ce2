"""A measured curve size by size: what the planner makes of it, and what a further token costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from dspark.scheduling.capacity import CapacityCurve


@dataclass(frozen=True, slots=True)
class SizeCost:
    """One measured size of a step, or of a draft.

    Attributes:
        size: batch tokens, or slots of all blocks.
        measured_s: as it was measured.
        seconds: by the curve, on which no larger size is cheaper.
        marginal_s: of a further token since the size before, by the curve; None at the first.
        tokens_per_s: size over seconds.
    """

    size: int
    measured_s: float
    seconds: float
    marginal_s: float | None
    tokens_per_s: float

    def as_dict(self) -> dict[str, float | None]:
        """For a report."""
        return asdict(self)


def by_size(points: Sequence[tuple[int, float]]) -> list[SizeCost]:
    """All sizes of (size, seconds), rising; the context of the steps is the same for all.

    Raises:
        ConfigurationError: the points make no curve.
    """
    curve, measured = CapacityCurve.from_points(points), dict(points)
    costs: list[SizeCost] = []
    for size, seconds in zip(curve.sizes, curve.seconds, strict=True):
        before = costs[-1] if costs else None
        marginal_s = (seconds - before.seconds) / (size - before.size) if before else None
        costs.append(SizeCost(size, measured[size], seconds, marginal_s, size / seconds))
    return costs
