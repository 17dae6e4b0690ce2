"""Whether a curve of ours has the shape of the paper's: a statement, what was found, and whether it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# Two shares differ when they are so many standard errors apart: by chance alone once in 370 comparisons.
ERRORS = 3.0
# A curve that loses less than this from one end to the other stays level.
LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Share:
    """A share of some drafts, and how many they are."""

    value: float
    count: int

    def minus(self, other: Share) -> tuple[float, float]:
        """The difference and its standard error."""
        variance = sum(one.value * (1 - one.value) / one.count for one in (self, other))
        return self.value - other.value, variance**0.5


@dataclass(frozen=True, slots=True)
class Shape:
    """One statement about a curve.

    Attributes:
        statement: what the paper's curve does.
        published: its figures.
        found: ours.
        holds: whether ours does it, too.
    """

    statement: str
    published: str
    found: str
    holds: bool


def rises(statement: str, published: str, first: Share, last: Share) -> Shape:
    """A curve that ends above its beginning."""
    difference, error = last.minus(first)
    return Shape(statement, published, _told(first, last), difference > ERRORS * error)


def falls(statement: str, published: str, first: Share, last: Share) -> Shape:
    """A curve that ends below its beginning."""
    difference, error = first.minus(last)
    return Shape(statement, published, _told(first, last), difference > ERRORS * error)


def stays_level(statement: str, published: str, first: Share, last: Share) -> Shape:
    """A curve that ends about where it begins, or above."""
    difference, error = first.minus(last)
    return Shape(statement, published, _told(first, last), difference <= max(LEVEL, ERRORS * error))


def lies_above(statement: str, published: str, upper: float, lower: float) -> Shape:
    """A figure above another one."""
    return Shape(statement, published, f"{upper:.2f} against {lower:.2f}", upper > lower)


def grows(statement: str, published: str, values: Sequence[float], *, unit: str = "") -> Shape:
    """Values of which, as printed, none is below the one before it and the last is above the first."""
    told = " ".join(f"{value:.2f}{unit}" for value in values)
    shown = [round(value, 2) for value in values]
    never_falls = all(later >= earlier for earlier, later in pairwise(shown))
    return Shape(statement, published, told, never_falls and shown[-1] > shown[0])


def _told(first: Share, last: Share) -> str:
    return f"{first.value:.2f} to {last.value:.2f}"
