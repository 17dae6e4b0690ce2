"""Draws curves and bars: SVG that needs nothing else to be shown, light or dark, and bars for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 24, 56, 48
# Told apart by colour-blind readers, too (Okabe and Ito), on white and on black.
_LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B07700", "#3A8FC2")
_DARK = ("#56B4E9", "#FF8A3D", "#2FC79A", "#E79BC4", "#F0B429", "#9AD0F5")
_MOST_TICKS = 9
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEGEND_CHARACTER, _LEGEND_GAP = 6.6, 36
# Values above narrower bars run into each other; they are told where the pointer rests.
_LEAST_LABELLED_BAR = 22


def _rules(ink: str, muted: str, line: str, paper: str, colours: Sequence[str]) -> str:
    kinds = [f".chart .s{number}{{color:{colour}}}" for number, colour in enumerate(colours)]
    return (
        f".chart{{color:{ink}}}.chart .paper{{fill:{paper}}}.chart text{{fill:{ink}}}"
        f".chart .muted{{fill:{muted}}}.chart .grid{{stroke:{line}}}.chart .axis{{stroke:{muted}}}"
        f".chart .guide{{color:{muted}}}" + "".join(kinds)
    )


# What a page that holds `drawing`s needs once; `svg` brings it along.
STYLE = (
    _rules("#1c2430", "#5b6675", "#e3e7ec", "#ffffff", _LIGHT)
    + "@media (prefers-color-scheme: dark){"
    + _rules("#e6eaf0", "#98a3b3", "#2c3440", "#12161c", _DARK)
    + "}"
)


@dataclass(frozen=True, slots=True)
class Series:
    """Points (x, y), in their order, with or without a line through them.

    Attributes:
        is_guide: a dashed grey line to compare with, which the legend leaves out.
    """

    name: str
    points: Sequence[tuple[float, float]]
    has_line: bool = True
    is_guide: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes, both from 0 on.

    Attributes:
        is_x_log: whether x is drawn by its logarithm, with ticks at powers of two; x must be above 0 then.
        x_ticks: of the x axis, from 0 on; empty: round numbers up to the first beyond all points.
        y_high: end of the y axis; None: the first round number beyond all points.
        categories: instead of an x axis: names of groups of bars, x being the place of the group.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    is_x_log: bool = False
    x_ticks: Sequence[float] = ()
    y_high: float | None = None
    categories: Sequence[str] = ()


def svg(panels: Sequence[Panel]) -> str:
    """One SVG document with the panels below each other.

    Args:
        panels: at least one, each with at least one point.
    """
    height = _HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="system-ui, sans-serif" font-size="12">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{height}"/>',
    ]
    for number, panel in enumerate(panels):
        parts += [
            f'<g transform="translate(0 {number * _HEIGHT})">',
            *_Drawing(panel, _WIDTH, _HEIGHT).parts(),
            "</g>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def drawing(panel: Panel, *, width: int = _WIDTH, height: int = _HEIGHT) -> str:
    """One panel as an element of an HTML page, which must hold `STYLE`; sizes in CSS pixels."""
    head = (
        f'<svg class="chart" role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12"><title>{escape(panel.title)}</title>'
    )
    return "\n".join([head, *_Drawing(panel, width, height).parts(), "</svg>"])


def bar(share: float, width: int = 24) -> str:
    """A bar as long as a share of `width` characters, to an eighth of one."""
    eighths = round(8 * width * min(max(share, 0.0), 1.0))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


class _Drawing:
    """Where the values of one panel lie on paper."""

    def __init__(self, panel: Panel, width: int, height: int) -> None:
        points = [point for series in panel.series for point in series.points]
        assert points, f"there is nothing to draw in {panel.title!r}"
        low, high = min(x for x, _ in points), max(x for x, _ in points)
        assert low > 0 if panel.is_x_log else low >= 0, f"x is {low} in {panel.title!r}"
        self._panel, self._width, self._height = panel, width, height
        round_ticks = _powers_of_two(low, high) if panel.is_x_log else _round_ticks(high)
        self._x_ticks = list(panel.x_ticks) or round_ticks
        self._y_ticks = _ticks_to(panel.y_high, max(y for _, y in points))
        self._low = self._scaled(low) if panel.is_x_log else 0.0
        self._high = self._scaled(max(high, self._x_ticks[-1]))
        # The class of each series, which gives it its colour.
        numbers = iter(range(len(panel.series)))
        self._kinds = ["guide" if one.is_guide else f"s{next(numbers) % len(_LIGHT)}" for one in panel.series]

    def parts(self) -> Iterator[str]:
        """The elements of the panel."""
        panel = self._panel
        yield _text(_LEFT, 20, panel.title, "font-weight='bold' font-size='14'")
        yield from self._axes()
        draw = self._bars if panel.categories else self._line
        for number, series in enumerate(panel.series):
            yield from draw(series, number)
        if sum(not one.is_guide for one in panel.series) > 1:
            yield from self._legend()

    def _axes(self) -> Iterator[str]:
        left, right, top, bottom = _LEFT, self._width - _RIGHT, _TOP, self._height - _BOTTOM
        for value in self._y_ticks:
            y = self._y(value)
            yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield _text(left - 8, y + 4, f"{value:g}", "class='muted' text-anchor='end'")
        for x, label in self._x_labels():
            if not self._panel.categories:
                yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}"/>'
            yield _text(x, bottom + 18, label, "class='muted' text-anchor='middle'")
        yield f'<path class="axis" d="M{left} {top}V{bottom}H{right}" fill="none"/>'
        yield _text((left + right) / 2, self._height - 12, self._panel.x_label, "text-anchor='middle'")
        middle = (top + bottom) / 2
        turned = f"text-anchor='middle' transform='rotate(-90 20 {middle:.1f})'"
        yield _text(20, middle, self._panel.y_label, turned)

    def _x_labels(self) -> list[tuple[float, str]]:
        names = self._panel.categories
        if names:
            return [(self._middle(place), name) for place, name in enumerate(names)]
        return [(self._x(value), f"{value:g}") for value in self._x_ticks]

    def _line(self, series: Series, number: int) -> Iterator[str]:
        kind = self._kinds[number]
        places = [(self._x(x), self._y(y)) for x, y in series.points]
        if series.has_line:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            look = 'stroke-dasharray="4 4"' if series.is_guide else 'stroke-width="2"'
            yield f'<polyline class="{kind}" points="{path}" fill="none" stroke="currentColor" {look}/>'
        for (x, y), point in zip(places, series.points, strict=True):
            if series.is_guide:
                continue
            told = escape(f"{series.name}: {point[0]:g}, {point[1]:.4g}")
            yield (
                f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3" fill="currentColor">'
                f"<title>{told}</title></circle>"
            )

    def _bars(self, series: Series, number: int) -> Iterator[str]:
        names = self._panel.categories
        slot = self._slot * 0.76 / len(self._panel.series)
        bottom = self._y(0.0)
        for x, y in series.points:
            left = self._middle(x) + (number - len(self._panel.series) / 2) * slot
            top = self._y(y)
            told = escape(f"{series.name}, {names[int(x)]}: {y:.4g}")
            yield (
                f'<rect class="{self._kinds[number]}" x="{left + 1:.1f}" y="{top:.1f}" '
                f'width="{slot - 2:.1f}" height="{bottom - top:.1f}" rx="2" fill="currentColor">'
                f"<title>{told}</title></rect>"
            )
            if slot >= _LEAST_LABELLED_BAR:
                yield _text(
                    left + slot / 2, top - 4, f"{y:.2f}", "class='muted' font-size='10' text-anchor='middle'"
                )

    def _legend(self) -> Iterator[str]:
        shown = [
            (kind, one.name)
            for kind, one in zip(self._kinds, self._panel.series, strict=True)
            if not one.is_guide
        ]
        widths = [_LEGEND_CHARACTER * len(name) + _LEGEND_GAP for _, name in shown]
        x = self._width - _RIGHT - sum(widths) + _LEGEND_GAP - 18
        for (kind, name), width in zip(shown, widths, strict=True):
            place = f'x="{x:.1f}" y="30" width="12" height="12"'
            yield f'<rect class="{kind}" {place} rx="2" fill="currentColor"/>'
            yield _text(x + 18, 40, name)
            x += width

    @property
    def _slot(self) -> float:
        """Width of a category."""
        return (self._width - _LEFT - _RIGHT) / len(self._panel.categories)

    def _middle(self, place: float) -> float:
        """The middle of a category."""
        return _LEFT + (place + 0.5) * self._slot

    def _scaled(self, x: float) -> float:
        return math.log2(x) if self._panel.is_x_log else x

    def _x(self, value: float) -> float:
        span = (self._high - self._low) or 1.0
        return _LEFT + (self._width - _LEFT - _RIGHT) * (self._scaled(value) - self._low) / span

    def _y(self, value: float) -> float:
        return self._height - _BOTTOM - (self._height - _TOP - _BOTTOM) * value / self._y_ticks[-1]


def _text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def _ticks_to(end: float | None, high: float) -> list[float]:
    """Ticks from 0 to a given end, or to the first round number that is not below `high`."""
    ticks = _round_ticks(high if end is None else end)
    return ticks if end is None else [*(tick for tick in ticks if tick < end - 1e-9), end]


def _round_ticks(high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, from 0 to the first that is not below `high`."""
    if high <= 0.0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(high))
    step = next(size * power for size in (0.2, 0.5, 1.0, 2.0) if high / (size * power) <= _MOST_TICKS)
    return [number * step for number in range(math.ceil(high / step - 1e-9) + 1)]


def _powers_of_two(low: float, high: float) -> list[float]:
    """Powers of two from `low` to `high`, as many as fit; both ends where none lies between."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    stride = max(1, math.ceil((last - first + 1) / _MOST_TICKS))
    return [2.0**power for power in range(first, last + 1, stride)] or [low, high]
