"""Pages that show figures: one HTML file that needs nothing else, light or dark, and the same in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from dspark.evaluation.chart import STYLE, Panel, drawing
from dspark.evaluation.offline.tables import Table

# Cards of one, two and three in a row, in CSS pixels, and what of one is not its drawing.
WHOLE, HALF, THIRD = 1152, 568, 373
_HEIGHT, _CARD_EDGE = 320, 18
# Names of more categories run into each other unless they have the whole width.
_MOST_NARROW_CATEGORIES = 4
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
th{color:var(--muted);font-weight:600;white-space:normal;vertical-align:bottom}th:first-child,td:first-child{text-align:left}
tr.sum td{font-weight:600}ul{padding-left:20px}li{margin:4px 0}
"""


@dataclass(frozen=True, slots=True)
class Section:
    """Part of a page.

    Attributes:
        panels: drawn beside each other.
        width: of a panel in CSS pixels.
        words: paragraphs below.
    """

    title: str
    panels: Sequence[Panel] = ()
    tables: Sequence[Table] = ()
    words: Sequence[str] = ()
    width: int = HALF


@dataclass(frozen=True, slots=True)
class Page:
    """A title, a line about where the figures are from, sections and notes."""

    title: str
    origin: str
    sections: Sequence[Section]
    notes: Sequence[str]


def html_of(page: Page) -> str:
    """No script, no other file."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(page.title)}</title><style>{_PAGE_STYLE}{STYLE}</style></head><body><main>",
        f"<h1>{escape(page.title)}</h1>",
        f'<p class="setup">{escape(page.origin)}</p>',
        *(part for section in page.sections for part in _html_section(section)),
        "<h2>How to read this</h2><ul>",
        *(f"<li>{escape(note)}</li>" for note in page.notes),
        "</ul></main></body></html>",
    ]
    return "\n".join([*parts, ""])


def markdown_of(page: Page, picture: str) -> str:
    """Tables and words; the plots are in the file `picture`, which is named."""
    lines = [f"# {page.title}", "", page.origin, "", f"The plots are in [{picture}]({picture}).", ""]
    for section in page.sections:
        if not section.tables and not section.words:
            continue
        lines += [f"## {section.title}", ""]
        for table in section.tables:
            lines += [f"### {table.title}", ""] if table.title != section.title else []
            lines += [_row(table.head), _row(["---", *["---:"] * (len(table.head) - 1)])]
            for number, cells in enumerate(table.rows):
                lines.append(_row([f"**{cell}**" if number in table.emphasised else cell for cell in cells]))
            lines.append("")
        lines += [line for words in section.words for line in (words, "")]
    lines += ["## How to read this", "", *(f"- {note}" for note in page.notes), ""]
    return "\n".join(lines)


def _html_section(section: Section) -> Iterator[str]:
    if not (section.panels or section.tables or section.words):
        return
    yield f"<h2>{escape(section.title)}</h2>"
    if section.panels:
        yield '<div class="cards">'
        for panel in section.panels:
            card = WHOLE if len(panel.categories) > _MOST_NARROW_CATEGORIES else section.width
            yield f'<div class="card">{drawing(panel, width=card - _CARD_EDGE, height=_HEIGHT)}</div>'
        yield "</div>"
    for table in section.tables:
        yield from _html_table(table)
    yield from (f"<p>{escape(words)}</p>" for words in section.words)


def _html_table(table: Table) -> Iterator[str]:
    yield f'<h3>{escape(table.title)}</h3><div class="card scroll"><table><thead><tr>'
    yield "".join(f"<th>{escape(cell)}</th>" for cell in table.head) + "</tr></thead><tbody>"
    for number, cells in enumerate(table.rows):
        kind = ' class="sum"' if number in table.emphasised else ""
        yield f"<tr{kind}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
    yield "</tbody></table></div>"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
