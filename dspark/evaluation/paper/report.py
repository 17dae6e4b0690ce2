"""The rebuilt figures as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dspark.evaluation.offline.tables import Table
from dspark.evaluation.page import HALF, WHOLE, Page, Section
from dspark.evaluation.paper.figure import Figure
from dspark.evaluation.paper.shapes import Shape


def page_of(figures: Sequence[Figure], notes: Sequence[str], remarks: Mapping[str, str], origin: str) -> Page:
    """One section per figure: plots, tables, shapes, and what the authors remark.

    Args:
        figures: in their order.
        notes: on all of them.
        remarks: by key of a figure.
        origin: what the figures are of.
    """
    sections = [
        Section(
            one.title,
            one.panels,
            (*one.tables, *_shape_tables(one.shapes)),
            (remarks[one.key],) if one.key in remarks else (),
            width=WHOLE if len(one.panels) == 1 else HALF,
        )
        for one in figures
    ]
    return Page("The paper's offline figures, rebuilt", origin, sections, notes)


def _shape_tables(shapes: Sequence[Shape]) -> list[Table]:
    rows = tuple(
        (one.statement, one.published, one.found, "as the paper" if one.holds else "differs")
        for one in shapes
    )
    differing = frozenset(number for number, one in enumerate(shapes) if not one.holds)
    return [Table("Shape", ("statement", "paper", "here", ""), rows, differing)] if rows else []
