"""Table 1: accepted length by drafter and task."""

from __future__ import annotations

from collections.abc import Sequence

from dspark.evaluation.chart import Panel, Series
from dspark.evaluation.offline.figures import TASK
from dspark.evaluation.offline.tables import NONE, Table
from dspark.evaluation.paper import published
from dspark.evaluation.paper.collection import Collection, Member
from dspark.evaluation.paper.figure import Figure, group_of, label, macro, tasks_of
from dspark.evaluation.paper.shapes import Shape


def accepted_lengths(collection: Collection) -> Figure:
    """Every main member on every task, beside the paper's."""
    tables, panels, shapes = [], [], []
    for temperature in collection.reference.results.temperatures:
        own = [one for one in collection.main if temperature in one.results.temperatures]
        tables.append(_length_table(own, temperature))
        panels.append(_length_panel(own, temperature))
        ours = macro(collection.reference, temperature)
        for one in own:
            low, high = published.GAIN_OVER.get(one.kind, (None, None))
            if low is None or high is None:
                continue
            other = macro(one, temperature)
            gain = f"{low:+.1%} to {high:+.1%}"
            found = f"{ours:.2f} against {other:.2f}, {ours / other - 1:+.1%}"
            shapes.append(Shape(f"DSpark above {one.kind}, T = {temperature:g}", gain, found, ours > other))
    return Figure("table1", "Table 1: accepted length", tuple(tables), tuple(panels), tuple(shapes))


def _length_table(members: Sequence[Member], temperature: float) -> Table:
    names = tasks_of(members)
    rows = []
    for one in members:
        groups = [group_of(one, TASK, name, temperature) for name in names]
        cells = [NONE if group is None else f"{group.full.accept_len:.2f}" for group in groups]
        speed = NONE if one.speed is None else f"{one.speed:.2f}"
        rows.append((label(one), *cells, f"{macro(one, temperature):.2f}", speed))
    theirs = [
        (
            f"paper: {kind}, Qwen3-4B, T = 1",
            *(f"{lengths[name]:.2f}" if name in lengths else NONE for name in names),
            f"{sum(lengths.values()) / len(lengths):.2f}",
            NONE,
        )
        for kind, lengths in published.ACCEPTED.items()
    ]
    head = ("drafter", *names, "mean of tasks", "speed over plain")
    return Table(f"Accepted length, T = {temperature:g}", head, (*rows, *theirs))


def _length_panel(members: Sequence[Member], temperature: float) -> Panel:
    names = tasks_of(members)
    series = []
    for one in members:
        groups = [(place, group_of(one, TASK, name, temperature)) for place, name in enumerate(names)]
        points = [(place, group.full.accept_len) for place, group in groups if group is not None]
        series.append(Series(label(one), points))
    return Panel(f"Accepted length, T = {temperature:g}", "", "tokens per round", series, categories=names)
