"""The report of an evaluation as a page."""

from __future__ import annotations

from dspark.evaluation.offline.figures import Figures
from dspark.evaluation.offline.pictures import (
    conditional_panels,
    length_panel,
    reliability_panels,
    sweep_panels,
)
from dspark.evaluation.offline.results import Results
from dspark.evaluation.offline.tables import tables_of
from dspark.evaluation.page import HALF, THIRD, WHOLE, Page, Section


def page_of(results: Results, figures: Figures) -> Page:
    """Plots first, then all tables."""
    sections = [
        Section("Accepted length by task", [length_panel(figures, results)], width=WHOLE),
        Section("Conditional acceptance", conditional_panels(figures, results), width=HALF),
        Section("Threshold on confidences", sweep_panels(figures, results), width=HALF),
        Section("Reliability of confidences", reliability_panels(figures, results), width=THIRD),
        Section("Tables", tables=tables_of(figures, results)),
    ]
    origin = " · ".join(f"{name} {value}" for name, value in results.setup.items())
    return Page("Evaluation of a drafter", origin, sections, figures.notes)
