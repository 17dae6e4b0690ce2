"""The report of an evaluation: one page of HTML that needs nothing else, and the same in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from dspark.evaluation.chart import STYLE, Panel, drawing
from dspark.evaluation.offline.figures import Figures
from dspark.evaluation.offline.pictures import (
    conditional_panels,
    length_panel,
    reliability_panels,
    sweep_panels,
)
from dspark.evaluation.offline.results import Results
from dspark.evaluation.offline.tables import Table, tables_of

_TITLE = "Evaluation of a drafter"
# Cards of one, two and three in a row, in CSS pixels, and what of one is not its drawing.
_WHOLE, _HALF, _THIRD, _HEIGHT = 1152, 568, 373, 320
_CARD_EDGE = 18
_PAGE_STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--muted:#5b6675;--line:#e3e7ec;--paper:#ffffff;--page:#f4f6f8}
@media (prefers-color-scheme:dark){
:root{--ink:#e6eaf0;--muted:#98a3b3;--line:#2c3440;--paper:#12161c;--page:#0b0e12}}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1152px;margin:0 auto;padding:32px 24px 64px}
h1{font-size:26px;margin:0 0 4px}h2{font-size:19px;margin:40px 0 12px}h3{font-size:15px;margin:24px 0 8px}
.setup{color:var(--muted);margin:0}.cards{display:flex;flex-wrap:wrap;gap:16px}
.card{background:var(--paper);border:1px solid var(--line);border-radius:8px;padding:8px;max-width:100%;
box-sizing:border-box}.card svg{max-width:100%;height:auto;display:block}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:4px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--muted);font-weight:600}th:first-child,td:first-child{text-align:left}
tr.sum td{font-weight:600}ul{padding-left:20px}li{margin:4px 0}
"""


def html_page(results: Results, figures: Figures) -> str:
    """The page; no script, no other file, light or dark as the reader's system is."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_TITLE}</title><style>{_PAGE_STYLE}{STYLE}</style></head><body><main>",
        f"<h1>{_TITLE}</h1>",
        f'<p class="setup">{escape(_setup_line(results.setup))}</p>',
        *_pictures(results, figures),
        "<h2>Tables</h2>",
        *(part for table in tables_of(figures, results) for part in _html_table(table)),
        "<h2>How to read this</h2><ul>",
        *(f"<li>{escape(note)}</li>" for note in figures.notes),
        "</ul></main></body></html>",
    ]
    return "\n".join([*parts, ""])


def markdown_page(results: Results, figures: Figures, picture: str) -> str:
    """The tables and notes in Markdown.

    Args:
        results: what was decoded.
        figures: computed of them.
        picture: the page with the plots, to be named.
    """
    lines = [
        f"# {_TITLE}",
        "",
        _setup_line(results.setup),
        "",
        f"The plots are in [{picture}]({picture}).",
        "",
    ]
    for table in tables_of(figures, results):
        lines += [f"## {table.title}", "", _row(table.head), _row(["---", *["---:"] * (len(table.head) - 1)])]
        for number, cells in enumerate(table.rows):
            lines.append(_row([f"**{cell}**" if number in table.emphasised else cell for cell in cells]))
        lines.append("")
    lines += ["## How to read this", "", *(f"- {note}" for note in figures.notes), ""]
    return "\n".join(lines)


def _pictures(results: Results, figures: Figures) -> Iterator[str]:
    yield from _section("Accepted length by task", [length_panel(figures, results)], _WHOLE)
    yield from _section("Conditional acceptance", conditional_panels(figures, results), _HALF)
    yield from _section("Threshold on confidences", sweep_panels(figures, results), _HALF)
    yield from _section("Reliability of confidences", reliability_panels(figures, results), _THIRD)


def _section(title: str, panels: Sequence[Panel], width: int) -> Iterator[str]:
    if not panels:
        return
    yield f'<h2>{escape(title)}</h2><div class="cards">'
    for panel in panels:
        yield f'<div class="card">{drawing(panel, width=width - _CARD_EDGE, height=_HEIGHT)}</div>'
    yield "</div>"


def _html_table(table: Table) -> Iterator[str]:
    yield f'<h3>{escape(table.title)}</h3><div class="card scroll"><table><thead><tr>'
    yield "".join(f"<th>{escape(cell)}</th>" for cell in table.head) + "</tr></thead><tbody>"
    for number, cells in enumerate(table.rows):
        kind = ' class="sum"' if number in table.emphasised else ""
        yield f"<tr{kind}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
    yield "</tbody></table></div>"


def _setup_line(setup: Mapping[str, Any]) -> str:
    return " · ".join(f"{name} {value}" for name, value in setup.items())


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
