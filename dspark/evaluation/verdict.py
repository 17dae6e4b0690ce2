"""Checks with a bound, and whether all of them hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    """One claim and whether it held.

    Attributes:
        name: what was looked at.
        found: what was measured, in words or figures.
        wanted: what it is held against.
    """

    name: str
    found: str
    wanted: str
    is_met: bool

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return {"name": self.name, "found": self.found, "wanted": self.wanted, "is_met": self.is_met}


def at_least(name: str, value: float, bound: float) -> Check:
    """A figure that must not lie below its bound."""
    return Check(name, f"{value:.3f}", f">= {bound:g}", value >= bound)


def at_most(name: str, value: float, bound: float) -> Check:
    """A figure that must not lie above its bound."""
    return Check(name, f"{value:.3f}", f"<= {bound:g}", value <= bound)


def all_met(checks: Iterable[Check]) -> bool:
    """Whether every check held."""
    return all(check.is_met for check in checks)


def largest_rise(values: Sequence[float]) -> float:
    """How far a value lies above the lowest before it, at most; 0 where none does."""
    return max(value - lowest for value, lowest in zip(values, accumulate(values, min), strict=True))
