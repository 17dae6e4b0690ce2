"""Fig. 5 and 6: a threshold on the confidences of the reference drafter, and how reliable they are."""

from __future__ import annotations

from collections.abc import Sequence

from dspark.evaluation.chart import Panel, Series
from dspark.evaluation.offline.confidence import PositionQuality
from dspark.evaluation.offline.figures import ALL, DOMAIN
from dspark.evaluation.offline.pictures import SHARES, error_panel, reliability_panel
from dspark.evaluation.paper import published
from dspark.evaluation.paper.collection import Collection
from dspark.evaluation.paper.figure import Figure, temperature_of
from dspark.evaluation.paper.shapes import Shape, grows


def threshold(collection: Collection) -> Figure | None:
    """Acceptance rate and committed length by threshold and domain; None without a sweep."""
    member = collection.reference
    own = [
        one
        for one in member.sweeps
        if one.temperature == temperature_of(member) and one.group.level == DOMAIN
    ]
    if not own:
        return None
    rates = [
        Series(one.group.name, [(point.threshold, point.acceptance_rate) for point in one.points])
        for one in own
    ]
    lengths = [
        Series(one.group.name, [(point.threshold, point.accept_len) for point in one.points]) for one in own
    ]
    panels = (
        Panel(
            "Acceptance rate under a threshold",
            "least confidence",
            "share",
            rates,
            x_ticks=SHARES,
            y_high=1.0,
        ),
        Panel("Committed under a threshold", "least confidence", "tokens per round", lengths, x_ticks=SHARES),
    )
    shapes = []
    for one in own:
        told = "{:.3f} to {:.3f}".format(*published.THRESHOLD_RATE.get(one.group.name, (0.0, 0.0)))
        shapes.append(
            grows(
                f"{one.group.name}: acceptance rises with the threshold",
                told,
                [point.acceptance_rate for point in one.points],
            )
        )
    return Figure("fig5", "Fig. 5: threshold on confidences", (), panels, tuple(shapes))


def reliability(collection: Collection) -> Figure | None:
    """Calibration error and reliability diagrams; None where no confidences were kept."""
    member = collection.reference
    own = [
        one
        for one in member.qualities
        if one.temperature == temperature_of(member) and one.group.level == ALL and one.quality.positions
    ]
    if not own:
        return None
    temperature, middle = temperature_of(member), len(own[0].quality.positions) // 2
    panels = [error_panel(own, temperature, member.gamma)]
    panels += [reliability_panel(own, place, temperature) for place in sorted({0, middle})]
    by_name = {one.calibration: one.quality for one in own}
    shapes = []
    told = "{:.1%} to {:.1%} before, {:.1%} to {:.1%} after".format(
        *published.ECE_BEFORE, *published.ECE_AFTER
    )
    for name, statement, paper in (
        ("STS", "STS lowers the calibration error", told),
        ("STS+offset", "STS with an offset (ours) lowers it", "as STS there"),
    ):
        if {"raw", name} <= by_name.keys():
            before, after = (_worst_error(by_name[key].positions) for key in ("raw", name))
            found = f"at most {before:.1%} before, {after:.1%} after"
            shapes.append(Shape(statement, paper, found, after < before))
    return Figure("fig6", "Fig. 6: reliability", (), tuple(panels), tuple(shapes))


def _worst_error(positions: Sequence[PositionQuality]) -> float:
    return max(one.ece for one in positions)
