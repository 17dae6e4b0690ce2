"""Fig. 2: the share of drafts accepted at each position, given that all before them were."""

from __future__ import annotations

from collections.abc import Sequence

from dspark.evaluation.chart import Panel, Series
from dspark.evaluation.offline.figures import DOMAIN
from dspark.evaluation.paper import published
from dspark.evaluation.paper.collection import DFLASH, DSPARK, EAGLE3, Collection, Member
from dspark.evaluation.paper.figure import Figure, group_of, label
from dspark.evaluation.paper.shapes import Shape, Share, falls, lies_above, rises, stays_level

# Positions judged less often are not drawn: the standard error of a share is up to a ninth there.
LEAST_DRAWN = 20
# Positions judged less often than this are drawn, but no shape rests on them.
LEAST_JUDGED = 50


def conditional_acceptance(collection: Collection) -> Figure:
    """One panel per domain, one line per main member."""
    panels, shapes = [], []
    for domain in _domains_of(collection.main):
        series = [
            Series(
                label(one), [(place + 1, share) for place, share, _ in _conditional(one, domain, LEAST_DRAWN)]
            )
            for one in collection.main
        ]
        title = f"Acceptance of a draft, those before accepted, {domain}"
        if drawn := [one for one in series if one.points]:
            ticks = range(1 + max(one.gamma for one in collection.main))
            panels.append(Panel(title, "position in the block", "share", drawn, x_ticks=ticks, y_high=1.0))
        shapes += _conditional_shapes(collection, domain)
    return Figure("fig2", "Fig. 2: conditional acceptance", (), tuple(panels), tuple(shapes))


def _conditional(member: Member, domain: str, least: int) -> list[tuple[int, float, int]]:
    """(position from 0, share accepted, how often it was judged), of those judged at least so often."""
    group = group_of(member, DOMAIN, domain)
    if group is None:
        return []
    shares = zip(group.full.conditional, group.full.num_judged, strict=True)
    return [
        (place, share, count)
        for place, (share, count) in enumerate(shares)
        if share is not None and count >= least
    ]


def _conditional_shapes(collection: Collection, domain: str) -> list[Shape]:
    ends: dict[str, tuple[Share, Share]] = {}
    for one in collection.main:
        known = [Share(share, count) for _, share, count in _conditional(one, domain, LEAST_JUDGED)]
        if len(known) > 1:
            ends[one.kind] = (known[0], known[-1])
    shapes = []
    if DSPARK in ends:
        told = "stays level"
        shapes.append(stays_level(f"{domain}: DSpark stays level along the block", told, *ends[DSPARK]))
    if DFLASH in ends:
        told = _told(DFLASH, domain)
        shapes.append(falls(f"{domain}: DFlash falls along the block", told, *ends[DFLASH]))
    if EAGLE3 in ends:
        told = _told(EAGLE3, domain)
        shapes.append(rises(f"{domain}: Eagle3 rises along the block", told, *ends[EAGLE3]))
    if {DFLASH, EAGLE3} <= ends.keys():
        statement = f"{domain}: DFlash above Eagle3 at the first draft"
        shapes.append(
            lies_above(statement, "so in each domain", ends[DFLASH][0].value, ends[EAGLE3][0].value)
        )
    return shapes


def _told(kind: str, domain: str) -> str:
    first, last = published.CONDITIONAL.get((kind, domain), (None, None))
    return f"{first:g} to {last:g}" if first is not None and last is not None else "the same"


def _domains_of(members: Sequence[Member]) -> list[str]:
    return list(
        dict.fromkeys(
            one.group.name for member in members for one in member.groups if one.group.level == DOMAIN
        )
    )
