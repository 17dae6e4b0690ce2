"""How the drafters learned: what more training would bring."""

from __future__ import annotations

from collections.abc import Sequence

from dspark.evaluation.chart import Panel, Series
from dspark.evaluation.offline.tables import NONE, Table
from dspark.evaluation.paper.collection import Collection, Learned, Member
from dspark.evaluation.paper.figure import Figure

_SHARES = (0.25, 0.5, 0.75, 1.0)


def learning(collection: Collection) -> Figure | None:
    """Tokens committed per round by blocks and by hours of training; None where no curve is stored."""
    members = [one for one in collection.members if one.curve]
    if not members:
        return None
    committed = "tokens per round, held out, greedy"
    panels = (
        Panel(
            "By blocks",
            "thousand blocks",
            committed,
            [Series(one.name, [(at.blocks / 1000, at.committed) for at in one.curve]) for one in members],
        ),
        Panel(
            "By time",
            "hours",
            committed,
            [Series(one.name, [(at.hours, at.committed) for at in one.curve]) for one in members],
        ),
    )
    head = ("drafter", "blocks", "hours", *(f"at {share:.0%}" for share in _SHARES), "last doubling")
    table = Table("Tokens per round by share of the run", head, tuple(_row(one) for one in members))
    return Figure("learning", "Learning curves", (table,), panels, ())


def _row(member: Member) -> tuple[str, ...]:
    last = member.curve[-1]
    reached = [_reached(member.curve, share * last.hours) for share in _SHARES]
    cells = [NONE if one is None else f"{one:.2f}" for one in reached]
    half = reached[1]
    gain = NONE if half is None else f"{last.committed / half - 1:+.1%}"
    return member.name, f"{last.blocks:.0f}", f"{last.hours:.2f}", *cells, gain


def _reached(curve: Sequence[Learned], hours: float) -> float | None:
    """What had been measured last by that time; None: only the start had."""
    found = [one.committed for one in curve if 0 < one.hours <= hours * (1 + 1e-9)]
    return found[-1] if found else None
