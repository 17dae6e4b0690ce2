"""The figures of an evaluation as panels, after the paper's Table 1 and Fig. 2, 5 and 6."""

from __future__ import annotations

from collections.abc import Sequence

from dspark.evaluation.chart import Panel, Series
from dspark.evaluation.offline.figures import ALL, DOMAIN, TASK, Figures, GroupQuality
from dspark.evaluation.offline.results import Results

# Shares of fewer drafts are noise, and are not drawn.
LEAST_JUDGED = 20
_LEAST_PREDICTED = 10
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def length_panel(figures: Figures, results: Results) -> Panel:
    """Accepted length by task, one bar per temperature."""
    names = list(dict.fromkeys(one.group.name for one in figures.groups if one.group.level == TASK))
    series = [
        Series(
            f"T = {temperature:g}",
            [
                (names.index(one.group.name), one.full.accept_len)
                for one in figures.groups
                if one.group.level == TASK and one.temperature == temperature
            ],
        )
        for temperature in results.temperatures
    ]
    return Panel("Accepted length", "", "tokens per round", series, categories=names)


def conditional_panels(figures: Figures, results: Results) -> list[Panel]:
    """Conditional acceptance by position and domain, one panel per temperature (Fig. 2)."""
    panels = []
    for temperature in results.temperatures:
        series = [
            Series(
                one.group.name,
                [
                    (place + 1, share)
                    for place, share in enumerate(one.full.conditional)
                    if share is not None and one.full.num_judged[place] >= LEAST_JUDGED
                ],
            )
            for one in figures.groups
            if one.temperature == temperature and one.group.level == DOMAIN
        ]
        title = f"Acceptance of a draft, those before accepted, T = {temperature:g}"
        panels.append(
            Panel(
                title,
                "position in the block",
                "share",
                _drawn(series),
                x_ticks=range(results.gamma + 1),
                y_high=1.0,
            )
        )
    return [one for one in panels if one.series]


def sweep_panels(figures: Figures, results: Results) -> list[Panel]:
    """Acceptance rate and committed length against verified drafts, by domain (Fig. 5)."""
    panels = []
    for temperature in results.temperatures:
        own = [one for one in figures.sweeps if one.temperature == temperature and one.group.level == DOMAIN]
        if not own:
            continue
        rates = [
            Series(one.group.name, [(point.mean_verified, point.acceptance_rate) for point in one.points])
            for one in own
        ]
        lengths = [
            Series(one.group.name, [(point.mean_verified, point.accept_len) for point in one.points])
            for one in own
        ]
        method = own[0].points[0].method.value
        told = f"T = {temperature:g}, {method}"
        x_label = "drafts verified per round; each point a threshold"
        panels += [
            Panel(f"Acceptance rate under a threshold, {told}", x_label, "share", rates, y_high=1.0),
            Panel(f"Committed under a threshold, {told}", x_label, "tokens per round", lengths),
        ]
    return panels


def reliability_panels(figures: Figures, results: Results) -> list[Panel]:
    """Observed against predicted survival at some positions, by calibration (Fig. 6), and ECE by position."""
    panels = []
    for temperature in results.temperatures:
        own = [one for one in figures.qualities if (one.temperature, one.group.level) == (temperature, ALL)]
        own = [one for one in own if one.quality.positions]
        if not own:
            continue
        last = len(own[0].quality.positions) - 1
        # Most drafts end at the first positions; the last ones show what is left.
        places = sorted({place for place in (0, 1, 2, (2 + last) // 2, last) if place <= last})
        panels += [reliability_panel(own, place, temperature) for place in places]
        panels.append(error_panel(own, temperature, results.gamma))
    return panels


def error_panel(own: Sequence[GroupQuality], temperature: float, gamma: int) -> Panel:
    """Calibration error by position, a line for each calibration."""
    errors = [
        Series(
            one.calibration,
            [(number + 1, 100 * place.ece) for number, place in enumerate(one.quality.positions)],
        )
        for one in own
    ]
    title = f"Calibration error, T = {temperature:g}"
    return Panel(title, "position in the block", "ECE, %", errors, x_ticks=range(gamma + 1))


def reliability_panel(own: Sequence[GroupQuality], place: int, temperature: float) -> Panel:
    """Observed against predicted survival at one position, a line for each calibration."""
    series = [Series("calibrated", [(0.0, 0.0), (1.0, 1.0)], is_guide=True)]
    series += [
        Series(
            one.calibration,
            [
                (bar.predicted, bar.observed)
                for bar in one.quality.positions[place].bins
                if bar.count >= _LEAST_PREDICTED
            ],
        )
        for one in own
    ]
    title = f"Survival of draft {place + 1}, T = {temperature:g}"
    return Panel(title, "predicted", "observed", series, x_ticks=SHARES, y_high=1.0)


def _drawn(series: Sequence[Series]) -> list[Series]:
    return [one for one in series if one.points]
