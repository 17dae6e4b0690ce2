"""Every figure of an evaluation, by task, by domain and over all, from stored results alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.evaluation.offline.accepted import Accepted, count_accepted
from dspark.evaluation.offline.confidence import Quality, quality_of
from dspark.evaluation.offline.recalibration import LEAST_BLOCKS, predictions_of
from dspark.evaluation.offline.results import PassKind, Results, Rounds
from dspark.evaluation.offline.sweep import SweepPoint, point_of, rounds_by_threshold
from dspark.evaluation.tasks import MOST_PROMPTS, domain_of
from dspark.scheduling.calibration import SequentialScaling

THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
TASK, DOMAIN, ALL = "task", "domain", "all"


@dataclass(frozen=True, slots=True)
class Group:
    """Prompts that figures are about.

    Attributes:
        level: "task", "domain" (its tasks pooled) or "all".
        prompts: their places.
    """

    level: str
    name: str
    prompts: tuple[int, ...]

    def rounds_of(self, rounds: Rounds) -> npt.NDArray[np.bool_]:
        """[N] which rounds are theirs."""
        mask: npt.NDArray[np.bool_] = np.isin(rounds.prompt, np.array(self.prompts))
        return mask


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """A drafter on a group at one temperature.

    Attributes:
        full: whole blocks, pooled over the rounds of the group.
        task_mean_accept_len: mean of the accepted lengths of the group's tasks, each task counting alike.
        served: rounds as served under the policy `auto`; None where that was not decoded.
        coupled: whole blocks under coupled sampling; None where that was not decoded.
    """

    temperature: float
    group: Group
    full: Accepted
    task_mean_accept_len: float
    served: Accepted | None = None
    coupled: Accepted | None = None


@dataclass(frozen=True, slots=True)
class GroupSweep:
    """A group under each threshold."""

    temperature: float
    group: Group
    points: tuple[SweepPoint, ...]


@dataclass(frozen=True, slots=True)
class GroupQuality:
    """Predicted survivals of a group, calibrated one way; see `Predictions`."""

    temperature: float
    group: Group
    calibration: str
    quality: Quality


@dataclass(frozen=True, slots=True)
class FittedScaling:
    """A scaling fitted on one half (0 or 1) of the prompts and judged on the other."""

    temperature: float
    calibration: str
    half: int
    scaling: SequentialScaling


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that was computed.

    Attributes:
        notes: what a reader must know to read them right.
    """

    groups: tuple[GroupFigures, ...]
    sweeps: tuple[GroupSweep, ...]
    qualities: tuple[GroupQuality, ...]
    fits: tuple[FittedScaling, ...]
    notes: tuple[str, ...]

    def as_dict(self, *, has_bins: bool = True) -> dict[str, Any]:
        """For `metrics.json`: groups are their level and name.

        Args:
            has_bins: whether reliability diagrams are part of it.
        """
        confidence = [_flat(one) for one in self.qualities]
        for position in (place for one in confidence for place in one["quality"]["positions"]):
            position["bins"] = position["bins"] if has_bins else []
        return {
            "groups": [_flat(one) for one in self.groups],
            "sweeps": [
                _flat(one)
                | {"points": [asdict(point) | {"method": point.method.value} for point in one.points]}
                for one in self.sweeps
            ],
            "confidence": confidence,
            "fits": [asdict(one) for one in self.fits],
        }


def groups_of(tasks: Sequence[str]) -> list[Group]:
    """The tasks in the order of the paper, then those that are none of its, their domains, and all."""
    known = list(MOST_PROMPTS)
    names = sorted(dict.fromkeys(tasks), key=lambda task: known.index(task) if task in known else len(known))
    domains = list(dict.fromkeys(domain_of(name) for name in names))
    places = list(enumerate(tasks))
    return [
        *(Group(TASK, name, tuple(n for n, task in places if task == name)) for name in names),
        *(Group(DOMAIN, one, tuple(n for n, task in places if domain_of(task) == one)) for one in domains),
        Group(ALL, ALL, tuple(range(len(tasks)))),
    ]


def figures_of(results: Results, thresholds: Sequence[float] = THRESHOLDS) -> Figures:
    """Compute everything.

    Args:
        results: of an evaluation.
        thresholds: of the sweep, where it was not run.
    """
    sweeps = sweeps_of(results, thresholds)
    qualities, fits = qualities_of(results)
    return Figures(group_figures_of(results), sweeps, qualities, fits, tuple(_notes(results, sweeps, fits)))


def group_figures_of(results: Results) -> tuple[GroupFigures, ...]:
    """Accepted lengths of every group at every temperature."""
    groups = groups_of(results.tasks)
    return tuple(
        figures
        for temperature in results.temperatures
        for figures in _group_figures(results, temperature, groups)
    )


def sweeps_of(results: Results, thresholds: Sequence[float] = THRESHOLDS) -> tuple[GroupSweep, ...]:
    """Every group under each threshold; `thresholds` are those of a sweep that was not run."""
    groups = groups_of(results.tasks)
    return tuple(
        sweep
        for temperature in results.temperatures
        for sweep in _sweeps(results, temperature, groups, thresholds)
    )


def qualities_of(results: Results) -> tuple[tuple[GroupQuality, ...], tuple[FittedScaling, ...]]:
    """Predicted survivals of every group, calibrated each way, and the scalings fitted for that."""
    groups = groups_of(results.tasks)
    found = [_qualities(results, temperature, groups) for temperature in results.temperatures]
    return (
        tuple(one for qualities, _ in found for one in qualities),
        tuple(one for _, fits in found for one in fits),
    )


def _group_figures(results: Results, temperature: float, groups: Sequence[Group]) -> list[GroupFigures]:
    by_kind = {
        kind: {group: _count(results, kind, temperature, group) for group in groups}
        for kind in (PassKind.FULL, PassKind.SERVED, PassKind.COUPLED)
    }
    lengths = {
        group.name: one.accept_len
        for group, one in by_kind[PassKind.FULL].items()
        if one is not None and group.level == TASK
    }
    figures = []
    for group, full in by_kind[PassKind.FULL].items():
        if full is None:
            continue
        own = [lengths[task] for task in dict.fromkeys(results.tasks[place] for place in group.prompts)]
        served, coupled = by_kind[PassKind.SERVED][group], by_kind[PassKind.COUPLED][group]
        figures.append(GroupFigures(temperature, group, full, sum(own) / len(own), served, coupled))
    return figures


def _count(results: Results, kind: PassKind, temperature: float, group: Group) -> Accepted | None:
    for one in results.passes_of(kind, temperature):
        rounds = one.rounds.where(group.rounds_of(one.rounds))
        return count_accepted(rounds, results.gamma, results.max_new_tokens)
    return None


def _sweeps(
    results: Results, temperature: float, groups: Sequence[Group], thresholds: Sequence[float]
) -> list[GroupSweep]:
    by_threshold = rounds_by_threshold(results, temperature, thresholds)
    if not by_threshold:
        return []
    return [
        GroupSweep(
            temperature,
            group,
            tuple(
                point_of(threshold, method, rounds.where(group.rounds_of(rounds)), results)
                for threshold, method, rounds in by_threshold
            ),
        )
        for group in groups
    ]


def _qualities(
    results: Results, temperature: float, groups: Sequence[Group]
) -> tuple[list[GroupQuality], list[FittedScaling]]:
    qualities: list[GroupQuality] = []
    fits: list[FittedScaling] = []
    for one in results.passes_of(PassKind.FULL, temperature):
        has_block = one.rounds.scheduled > 0
        rounds = one.rounds.where(has_block)
        if rounds.logits is None or len(rounds) == 0:
            continue
        for made in predictions_of(rounds, results, temperature):
            fits += [
                FittedScaling(temperature, made.name, half, fitted) for half, fitted in enumerate(made.fits)
            ]
            for group in groups:
                own = group.rounds_of(rounds)
                judged = quality_of(made.survival[own], rounds.accepted[own], rounds.proposed[own])
                qualities.append(GroupQuality(temperature, group, made.name, judged))
    return qualities, fits


_METHOD_NOTES = {
    "walked": "a block was drafted at every position of each greedy text, so the rounds of every threshold "
    "are exact",
    "run": "the prompts were decoded once with each threshold",
    "replayed": "every block of the full-block run was cut at the threshold; exact for these blocks, while a "
    "run with the threshold would start some blocks elsewhere",
}


def _notes(results: Results, sweeps: Sequence[GroupSweep], fits: Sequence[FittedScaling]) -> list[str]:
    notes = [
        "accept_len is DeepSpec's accepted length: whole blocks, bonus token included except where the text "
        "ends inside the drafts, mean over rounds, the round that runs over the limit counted whole.",
        "Rows of a domain and of all prompts pool the rounds of their tasks; `mean of tasks` gives every "
        "task the same weight, as the paper's averages do.",
        "Plots leave out shares of fewer than 20 drafts and bars of fewer than 10 predictions.",
    ]
    for name, told in _METHOD_NOTES.items():
        own = [one for one in sweeps if any(point.method.value == name for point in one.points)]
        if own:
            shown = ", ".join(dict.fromkeys(f"T = {one.temperature:g}" for one in own))
            notes.append(f"Threshold sweep, {name}: {told} ({shown}).")
    if not results.has_confidence_head:
        notes.append(
            "The drafter has no confidence head: its confidences are the probabilities of the best tokens of "
            "its distributions, which estimate acceptance only once they are calibrated."
        )
    return [*notes, *_fit_notes(results, fits)]


def _fit_notes(results: Results, fits: Sequence[FittedScaling]) -> list[str]:
    notes = []
    refitted = {one.temperature for one in fits}
    if refitted:
        notes.append(
            "STS and STS+offset are fitted on half of each task's prompts and judged on the other half, and "
            "the reverse."
        )
    if missing := [f"{one:g}" for one in results.temperatures if one not in refitted]:
        notes.append(
            f"No refitted calibration at T = {', '.join(missing)}: a half of the prompts has fewer than "
            f"{LEAST_BLOCKS} whole blocks; raise --limit or --tokens."
        )
    return notes


def _flat(one: GroupFigures | GroupSweep | GroupQuality) -> dict[str, Any]:
    document = asdict(one)
    group = document.pop("group")
    return {
        "level": group["level"],
        "name": group["name"],
        "num_prompts": len(group["prompts"]),
        **document,
    }
