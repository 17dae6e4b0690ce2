"""The curves of a training run, from the rows of its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dspark.evaluation.chart import Panel, Series

# Title, unit, and the name of each figure with what the legend calls it.
_PANELS = (
    ("Loss", "loss", {"loss": "training", "held_out_loss": "held out"}),
    (
        "Tokens committed per round, held out",
        "tokens",
        {"mean_committed_greedy": "greedy", "mean_committed_sampled": "sampled"},
    ),
    ("Speed", "blocks/s", {"blocks_per_s": "blocks/s"}),
    ("Peak memory", "MiB", {"peak_memory_mib": "MiB"}),
)


def panels(rows: Sequence[Mapping[str, float]]) -> list[Panel]:
    """One panel over steps for each kind of figure that the rows hold.

    Args:
        rows: of `metrics.jsonl`, each with its `step`; at least one of them measured on held-out blocks.
    """
    drawn = []
    for title, unit, names in _PANELS:
        series = [
            Series(legend, [(row["step"], row[name]) for row in rows if name in row])
            for name, legend in names.items()
        ]
        if any(one.points for one in series):
            drawn.append(Panel(title, "step", unit, [one for one in series if one.points]))
    return drawn
