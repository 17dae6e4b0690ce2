"""All figures of a collection, and what its members must share to be compared."""

from __future__ import annotations

from collections.abc import Callable

from dspark.evaluation.paper.collection import Collection, budget_ratios
from dspark.evaluation.paper.conditional import conditional_acceptance
from dspark.evaluation.paper.confidences import reliability, threshold
from dspark.evaluation.paper.figure import Figure
from dspark.evaluation.paper.learning import learning
from dspark.evaluation.paper.lengths import accepted_lengths
from dspark.evaluation.paper.scaling import depth, gamma

# Budgets that differ by more than this are not called equal.
_MOST_DIFFERENCE = 0.05
_MAKERS: tuple[Callable[[Collection], Figure | None], ...] = (
    accepted_lengths,
    conditional_acceptance,
    depth,
    gamma,
    threshold,
    reliability,
    learning,
)


def build_figures(collection: Collection) -> list[Figure]:
    """All figures for which there is anything to show, in the paper's order."""
    found = (make(collection) for make in _MAKERS)
    return [one for one in found if one is not None]


def notes_on(collection: Collection) -> list[str]:
    """What a reader must know to compare the members."""
    notes = [
        "Accepted length is DeepSpec's, bonus token included. The paper's drafters serve Qwen3-4B and saw "
        "1.3 million samples ten times: only shapes can be compared.",
    ]
    trained = [one for one in collection.members if one.blocks is not None]
    budgets = [one.blocks for one in trained if one.blocks is not None]
    hours = [one.hours for one in trained if one.hours is not None]
    equal = {unit for unit, ratio in budget_ratios(trained).items() if ratio * (1 + _MOST_DIFFERENCE) >= 1}
    told = ", ".join(f"{one.name} {one.blocks}" for one in trained)
    if "blocks" in equal:
        notes.append(f"All were trained on the same number of blocks: {min(budgets)} to {max(budgets)}.")
    elif "hours" in equal:
        notes.append(
            f"All were trained for the same time, {min(hours):.2f} to {max(hours):.2f} hours; blocks: {told}."
        )
    elif budgets:
        notes.append(f"Budgets of training differ, in blocks: {told}.")
    if unknown := [one.name for one in collection.members if one.blocks is None and one.num_layers]:
        notes.append(f"Nothing is recorded of the training of {', '.join(unknown)}.")
    return notes
