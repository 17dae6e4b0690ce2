"""One rebuilt figure, and what all of them read of a member."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspark.evaluation.chart import Panel
from dspark.evaluation.offline.figures import ALL, TASK, GroupFigures
from dspark.evaluation.offline.tables import NONE, Table
from dspark.evaluation.paper.collection import PARALLEL, Member
from dspark.evaluation.paper.shapes import Shape
from dspark.evaluation.tasks import BENCHMARKS


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the paper, rebuilt.

    Attributes:
        key: "table1", "fig2", ...; remarks are found by it.
        panels: may be none.
        shapes: may be none, where the members do not suffice.
    """

    key: str
    title: str
    tables: tuple[Table, ...]
    panels: tuple[Panel, ...]
    shapes: tuple[Shape, ...]


def temperature_of(member: Member) -> float:
    """The paper's temperature, 1, where it was decoded at; else the last one."""
    known = member.results.temperatures
    return 1.0 if 1.0 in known else known[-1]


def group_of(member: Member, level: str, name: str, temperature: float | None = None) -> GroupFigures | None:
    """Figures of a group, at the paper's temperature if none is named."""
    wanted = temperature_of(member) if temperature is None else temperature
    for one in member.groups:
        if (one.group.level, one.group.name, one.temperature) == (level, name, wanted):
            return one
    return None


def macro(member: Member, temperature: float | None = None) -> float:
    """Mean accepted length over the tasks, each counting alike."""
    everything = group_of(member, ALL, ALL, temperature)
    assert everything is not None, f"{member.name} has no rounds"
    return everything.task_mean_accept_len


def label(member: Member) -> str:
    """How a legend names a member: its kind, and its depth where that says anything."""
    if member.kind not in PARALLEL:
        return member.kind
    return f"{member.kind}, {member.num_layers} layer{'' if member.num_layers == 1 else 's'}"


def tasks_of(members: Sequence[Member]) -> list[str]:
    """Tasks that any of them was evaluated on, in the paper's order, others behind them."""
    known = [name for tasks in BENCHMARKS.values() for name in tasks]
    found = dict.fromkeys(
        one.group.name for member in members for one in member.groups if one.group.level == TASK
    )
    return [*(name for name in known if name in found), *(name for name in found if name not in known)]


def training_cells(member: Member) -> tuple[str, str]:
    """Blocks and hours of training."""
    blocks = NONE if member.blocks is None else str(member.blocks)
    return blocks, NONE if member.hours is None else f"{member.hours:.2f}"
