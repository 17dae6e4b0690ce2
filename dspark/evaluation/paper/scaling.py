"""Fig. 3 and 4: what depth and gamma bring, and what the sequential head costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dspark.evaluation.chart import Panel, Series
from dspark.evaluation.offline.tables import Table
from dspark.evaluation.paper import published
from dspark.evaluation.paper.collection import DFLASH, DSPARK, PARALLEL, Collection, Member
from dspark.evaluation.paper.figure import Figure, macro, training_cells
from dspark.evaluation.paper.shapes import Shape, grows, lies_above

# Most that the head may add to a round for its share to be called little.
MOST_HEAD_SHARE = 0.05


def depth(collection: Collection) -> Figure | None:
    """Accepted length by number of layers; None with fewer than two depths."""
    by_kind = {kind: collection.by_depth(kind) for kind in PARALLEL}
    if max(len(own) for own in by_kind.values()) < 2:
        return None
    table, panel = _lengths("depth", "layers", "draft layers", by_kind, lambda one: one.num_layers)
    shapes = [
        grows(f"{kind} accepts more with depth", "so", [macro(one) for one in own])
        for kind, own in by_kind.items()
        if len(own) > 1
    ]
    two = next((one for one in by_kind[DSPARK] if one.num_layers == 2), None)
    if two is not None and by_kind[DFLASH]:
        deepest = by_kind[DFLASH][-1]
        statement = f"a DSpark drafter of 2 layers above a DFlash drafter of {deepest.num_layers}"
        shapes.append(lies_above(statement, "2 layers above 5", macro(two), macro(deepest)))
    return Figure("fig3", "Fig. 3: depth", (table,), (panel,), tuple(shapes))


def gamma(collection: Collection) -> Figure | None:
    """Accepted length and the time of the head by gamma; None where neither is known."""
    tables, panels, shapes = _by_gamma(collection)
    if collection.latencies:
        panels.append(_latency_panel(collection))
        shapes.append(_latency_shape(collection))
        tables.append(_latency_table(collection))
    return Figure("fig4", "Fig. 4: gamma", tuple(tables), tuple(panels), tuple(shapes)) if panels else None


def _by_gamma(collection: Collection) -> tuple[list[Table], list[Panel], list[Shape]]:
    by_kind = {kind: collection.by_gamma(kind) for kind in PARALLEL}
    if max(len(own) for own in by_kind.values()) < 2:
        return [], [], []
    table, panel = _lengths("gamma", "gamma", "gamma", by_kind, lambda one: one.gamma)
    gains = _gains(by_kind)
    if len(gains) < 2:
        return [table], [panel], []
    short, long = published.GAIN_AT_GAMMA[7], published.GAIN_AT_GAMMA[15]
    told = f"{min(short):.0%} to {max(short):.0%} at 7, {min(long):.0%} to {max(long):.0%} at 15"
    values = [100 * gain for _, gain in gains]
    return [table], [panel], [grows("the gain over DFlash grows with gamma", told, values, unit=" %")]


def _lengths(
    what: str,
    column: str,
    axis: str,
    by_kind: Mapping[str, Sequence[Member]],
    size: Callable[[Member], int],
) -> tuple[Table, Panel]:
    """The accepted lengths of drafters that differ in one size, and their drawing."""
    title = f"Accepted length by {what}"
    drawn = [Series(kind, [(size(one), macro(one)) for one in own]) for kind, own in by_kind.items() if own]
    rows = tuple(
        (one.kind, str(size(one)), f"{macro(one):.2f}", *training_cells(one))
        for own in by_kind.values()
        for one in own
    )
    return (
        Table(title, ("drafter", column, "accept_len", "blocks", "hours"), rows),
        Panel(title, axis, "tokens per round, mean of tasks", drawn),
    )


def _latency_panel(collection: Collection) -> Panel:
    # the axis begins at 0: what the noise of a clock put below it is drawn there
    points = [(one.gamma, max(100 * one.head_share, 0.0)) for one in collection.latencies]
    title = "Time the sequential head adds to a round"
    return Panel(title, "gamma", "% of the round", [Series("head", points)])


def _latency_shape(collection: Collection) -> Shape:
    low, high = published.HEAD_SHARE
    most = max(one.head_share for one in collection.latencies)
    statement = "the head adds little to a round at any gamma"
    return Shape(statement, f"{low:.1%} to {high:.1%}", f"{most:.1%} at most", most <= MOST_HEAD_SHARE)


def _gains(by_kind: dict[str, list[Member]]) -> list[tuple[int, float]]:
    """(gamma, gain of DSpark over DFlash) where there are both."""
    others = {one.gamma: macro(one) for one in by_kind[DFLASH]}
    return [(one.gamma, macro(one) / others[one.gamma] - 1) for one in by_kind[DSPARK] if one.gamma in others]


def _latency_table(collection: Collection) -> Table:
    rows = tuple(
        (
            str(one.gamma),
            f"{1e3 * one.parallel_s:.2f}",
            f"{1e3 * one.draft_s:.2f}",
            f"{1e3 * one.verify_s:.2f}",
            f"{100 * one.head_share:.1f}",
        )
        for one in collection.latencies
    )
    head = ("gamma", "draft without head, ms", "draft, ms", "verify, ms", "head, % of the round")
    return Table("A round of one request", head, rows)
