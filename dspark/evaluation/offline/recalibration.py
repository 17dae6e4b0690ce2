"""Survivals predicted by a drafter's confidences as they are, as shipped, and refitted on other prompts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark.evaluation.offline.results import Results, Rounds
from dspark.scheduling.calibration import SequentialScaling
from dspark.scheduling.survival import survival

LEAST_BLOCKS = 200


@dataclass(frozen=True, slots=True)
class Predictions:
    """One way to calibrate.

    Attributes:
        name: "raw" (no calibration), "shipped" (calibration.json of the drafter), "STS" (the paper's
            Sequential Temperature Scaling) or "STS+offset" (ours); the last two are refitted.
        survival: [N, G] predicted of each round; NaN where there was no draft.
        fits: what was fitted on the first and on the second half of the prompts; empty where nothing was.
    """

    name: str
    survival: npt.NDArray[np.float64]
    fits: tuple[SequentialScaling, ...] = ()


def predictions_of(rounds: Rounds, results: Results, temperature: float) -> list[Predictions]:
    """Predict the survival of every round in each way.

    Refitted scalings are fitted on one half of each task's prompts and judged on the other, and the
    reverse, so nothing is judged on a prompt it was fitted on. They are left out where a half has fewer
    than 200 whole blocks.

    Args:
        rounds: with logits.
        results: whose rounds they are.
        temperature: of the rounds.
    """
    assert rounds.logits is not None, "the pass kept no confidences"
    logits = rounds.logits.astype(np.float64)
    identity, shipped = SequentialScaling.identity(results.gamma), results.scaling(temperature)
    made = [Predictions("raw", survival(identity.apply(logits)))]
    if shipped != identity:
        made.append(Predictions("shipped", survival(shipped.apply(logits))))
    halves = halves_of(results.tasks)[rounds.prompt]
    whole = rounds.proposed == results.gamma
    if min(int((whole & (halves == half)).sum()) for half in (0, 1)) < LEAST_BLOCKS:
        return made
    survived = rounds.accepted[:, None] > np.arange(results.gamma)
    for name, has_offsets in (("STS", False), ("STS+offset", True)):
        fits, predicted = [], np.empty_like(logits)
        for half in (0, 1):
            own = whole & (halves == half)
            fits.append(SequentialScaling.fit(logits[own], survived[own], has_offsets=has_offsets))
            predicted[halves != half] = survival(fits[half].apply(logits[halves != half]))
        made.append(Predictions(name, predicted, tuple(fits)))
    return made


def halves_of(tasks: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """0 or 1 for each prompt, in turns within each task, [P]."""
    seen: dict[str, int] = {}
    halves = []
    for task in tasks:
        seen[task] = seen.get(task, -1) + 1
        halves.append(seen[task] % 2)
    return np.array(halves, dtype=np.int64)
