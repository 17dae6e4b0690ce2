"""Draws curves: SVG files that need nothing else to be shown, and bars for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 24, 56, 48
# Told apart by colour-blind readers, too (Okabe and Ito).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MOST_TICKS = 9
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Series:
    """Points (x, y), in their order, with or without a line through them."""

    name: str
    points: Sequence[tuple[float, float]]
    has_line: bool = True


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes, both from 0 on.

    Attributes:
        is_x_log: whether x is drawn by its logarithm, with ticks at powers of two; x must be above 0 then.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    is_x_log: bool = False


def svg(panels: Sequence[Panel]) -> str:
    """One SVG document with the panels below each other.

    Args:
        panels: at least one, each with at least one point.
    """
    height = _HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate(0 {number * _HEIGHT})">', *_Drawing(panel).parts(), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def bar(share: float, width: int = 24) -> str:
    """A bar as long as a share of `width` characters, to an eighth of one."""
    eighths = round(8 * width * min(max(share, 0.0), 1.0))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


class _Drawing:
    """Where the values of one panel lie on paper."""

    def __init__(self, panel: Panel) -> None:
        points = [point for series in panel.series for point in series.points]
        assert points, f"there is nothing to draw in {panel.title!r}"
        low, high = min(x for x, _ in points), max(x for x, _ in points)
        assert low > 0 if panel.is_x_log else low >= 0, f"x is {low} in {panel.title!r}"
        self._panel = panel
        self._x_ticks = _powers_of_two(low, high) if panel.is_x_log else _round_ticks(high)
        self._y_ticks = _round_ticks(max(y for _, y in points))
        self._low = self._scaled(low) if panel.is_x_log else 0.0
        self._high = self._scaled(max(high, self._x_ticks[-1]))

    def parts(self) -> Iterator[str]:
        """The elements of the panel."""
        panel = self._panel
        yield _text(_LEFT, 20, panel.title, "font-weight='bold' font-size='14'")
        yield from self._axes()
        for number, series in enumerate(panel.series):
            yield from self._line(series, _COLOURS[number % len(_COLOURS)])
        if len(panel.series) > 1:
            yield from self._legend()

    def _axes(self) -> Iterator[str]:
        left, right, top, bottom = _LEFT, _WIDTH - _RIGHT, _TOP, _HEIGHT - _BOTTOM
        for value in self._y_ticks:
            y = self._y(value)
            yield f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            yield _text(left - 8, y + 4, f"{value:g}", "text-anchor='end'")
        for value in self._x_ticks:
            x = self._x(value)
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}" stroke="#333"/>'
            yield _text(x, bottom + 18, f"{value:g}", "text-anchor='middle'")
        yield f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#333"/>'
        yield _text((left + right) / 2, _HEIGHT - 12, self._panel.x_label, "text-anchor='middle'")
        yield _text(_LEFT, _TOP - 12, self._panel.y_label, "text-anchor='middle'")

    def _line(self, series: Series, colour: str) -> Iterator[str]:
        places = [(self._x(x), self._y(y)) for x, y in series.points]
        if series.has_line:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for (x, y), point in zip(places, series.points, strict=True):
            told = escape(f"{series.name}: {point[0]:g}, {point[1]:.4g}")
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{told}</title></circle>'

    def _legend(self) -> Iterator[str]:
        width = (_WIDTH - _RIGHT - _LEFT) / max(4, len(self._panel.series))
        left = _WIDTH - _RIGHT - width * len(self._panel.series)
        for number, series in enumerate(self._panel.series):
            colour, x = _COLOURS[number % len(_COLOURS)], left + number * width
            yield f'<rect x="{x:.1f}" y="30" width="12" height="12" fill="{colour}"/>'
            yield _text(x + 18, 40, series.name)

    def _scaled(self, x: float) -> float:
        return math.log2(x) if self._panel.is_x_log else x

    def _x(self, value: float) -> float:
        span = (self._high - self._low) or 1.0
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (self._scaled(value) - self._low) / span

    def _y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / self._y_ticks[-1]


def _text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


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
