"""Stored evaluations of several drafters of one target, a directory each.

DIR/NAME/rounds.json     what `dspark evaluate --report` keeps; its setup says what the drafter is
DIR/NAME/metrics.jsonl   of the training run, where it was copied there
DIR/speed.json           of `dspark bench speed --beside` with drafters of these names, where that was run
DIR/latency.json         of `dspark bench figures --latency`, where that was run
DIR/remarks.json         what the authors say to a figure, by its key, where they say anything
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dspark.errors import ConfigurationError
from dspark.evaluation.head_latency import RoundLatency
from dspark.evaluation.offline.figures import (
    GroupFigures,
    GroupQuality,
    GroupSweep,
    group_figures_of,
    qualities_of,
    sweeps_of,
)
from dspark.evaluation.offline.results import FILE, Results, read_results
from dspark.training.metrics import FILE_NAME as METRICS
from dspark.training.metrics import read_metrics

DSPARK, DFLASH, EAGLE3 = "DSpark", "DFlash", "Eagle3"
LATENCY, REMARKS, SPEED = "latency.json", "remarks.json", "speed.json"
# Drafters whose block is made in one pass; depth and gamma are compared among these.
PARALLEL = (DSPARK, DFLASH)


@dataclass(frozen=True, slots=True)
class Learned:
    """What a drafter had learned at one moment of its training.

    Attributes:
        blocks: trained on so far.
        hours: of training so far.
        committed: tokens per round of whole blocks on held-out text, greedily.
    """

    blocks: float
    hours: float
    committed: float


@dataclass(frozen=True)
class Member:
    """One drafter. What is computed from its results is computed when it is first asked for.

    Attributes:
        name: of its directory.
        kind: "DSpark", "DFlash", "Eagle3", ...
        num_layers: draft layers; 0 without a model.
        blocks: trained on; None: not known.
        hours: of training.
        speed: tokens per second over those of plain decoding in the same run; None: not measured.
        curve: held-out figures during training, oldest first; empty: not stored.
    """

    name: str
    kind: str
    num_layers: int
    results: Results
    blocks: int | None = None
    hours: float | None = None
    speed: float | None = None
    curve: tuple[Learned, ...] = ()

    @property
    def gamma(self) -> int:
        """Drafts of a whole block."""
        return self.results.gamma

    @cached_property
    def groups(self) -> tuple[GroupFigures, ...]:
        """Accepted lengths by task, by domain and over all."""
        return group_figures_of(self.results)

    @cached_property
    def sweeps(self) -> tuple[GroupSweep, ...]:
        """The same groups under thresholds on the confidence."""
        return sweeps_of(self.results)

    @cached_property
    def qualities(self) -> tuple[GroupQuality, ...]:
        """How well its confidences are calibrated."""
        return qualities_of(self.results)[0]


@dataclass(frozen=True, slots=True)
class Collection:
    """All members, and what belongs to none of them.

    Attributes:
        latencies: rounds with and without the sequential head; empty: not measured.
        latency_setup: what they were measured on.
        remarks: by key of a figure.
    """

    members: tuple[Member, ...]
    latencies: tuple[RoundLatency, ...] = ()
    latency_setup: Mapping[str, Any] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)

    @property
    def reference(self) -> Member:
        """The DSpark drafter that most others differ from in depth or in gamma alone, if in either."""
        shapes = [(one.num_layers, one.gamma) for one in self.members if one.kind in PARALLEL]

        def comparable(one: Member) -> int:
            return sum(one.num_layers == layers or one.gamma == gamma for layers, gamma in shapes)

        return max((one for one in self.members if one.kind == DSPARK), key=comparable)

    @property
    def main(self) -> list[Member]:
        """One of each kind: of the reference's shape, where shapes are comparable."""
        shape = (self.reference.num_layers, self.reference.gamma)
        own = [
            one for one in self.members if one.kind not in PARALLEL or (one.num_layers, one.gamma) == shape
        ]
        return _first_of_each(own, lambda one: one.kind)

    def by_depth(self, kind: str) -> list[Member]:
        """Those with the reference's gamma, by depth: one of each."""
        own = [one for one in self.members if one.kind == kind and one.gamma == self.reference.gamma]
        return sorted(_first_of_each(own, _depth), key=_depth)

    def by_gamma(self, kind: str) -> list[Member]:
        """Those with the reference's depth, by gamma: one of each."""
        depth = self.reference.num_layers
        own = [one for one in self.members if one.kind == kind and one.num_layers == depth]
        return sorted(_first_of_each(own, _gamma), key=_gamma)

    def of_kind(self, kind: str) -> Member | None:
        """Of the main members."""
        return next((one for one in self.main if one.kind == kind), None)


def _depth(member: Member) -> int:
    return member.num_layers


def _gamma(member: Member) -> int:
    return member.gamma


def _first_of_each(members: Sequence[Member], group: Callable[[Member], Hashable]) -> list[Member]:
    """The first of each group, so that of several of one shape the same one is compared everywhere."""
    first: dict[Hashable, Member] = {}
    for one in members:
        first.setdefault(group(one), one)
    return list(first.values())


def budget_ratios(members: Sequence[Member]) -> dict[str, float]:
    """Smallest over largest training budget of the members that have one, by unit: blocks and hours.

    A unit that is not known of all of these is left out.
    """
    trained = [one for one in members if one.blocks]
    by_unit = {
        "blocks": [float(one.blocks) for one in trained if one.blocks],
        "hours": [one.hours for one in trained if one.hours],
    }
    known = {unit: budgets for unit, budgets in by_unit.items() if budgets and len(budgets) == len(trained)}
    return {unit: min(budgets) / max(budgets) for unit, budgets in known.items()}


def read_collection(directory: Path) -> Collection:
    """Read everything that is stored.

    Raises:
        ConfigurationError: there is no evaluation of a DSpark drafter, or a file cannot be used; names it.
    """
    paths = sorted(directory.glob(f"*/{FILE}"))
    speeds = _read_speeds(directory / SPEED)
    members = tuple(_read_member(path, speeds.get(path.parent.name)) for path in paths)
    if not any(one.kind == DSPARK for one in members):
        raise ConfigurationError(
            f"{directory}: no evaluation of a DSpark drafter; store some with `dspark evaluate --drafter ... "
            f"--report {directory / 'NAME'}`"
        )
    latencies = _read_json(directory / LATENCY) or {}
    return Collection(
        members,
        tuple(RoundLatency(**one) for one in latencies.get("rounds", ())),
        latencies.get("setup", {}),
        _read_json(directory / REMARKS) or {},
    )


def _read_speeds(path: Path) -> dict[str, float]:
    """Tokens per second over those of plain decoding, by the name of the drafter's directory."""
    document = _read_json(path)
    if document is None:
        return {}
    try:
        speeds = {name: one["overall"] for name, one in document["figures"]["tokens_per_second"].items()}
        plain = float(speeds.pop("plain"))
        own = document["setup"]["drafter"]
        return {own if name == "dspark" else name: float(speed) / plain for name, speed in speeds.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigurationError(
            f"{path} is not what `dspark bench speed --json` writes; measure again, or remove it"
        ) from None


def _read_member(path: Path, speed: float | None) -> Member:
    results = read_results(path)
    setup = results.setup
    missing = [name for name in ("kind", "layers") if name not in setup]
    if missing:
        raise ConfigurationError(f"{path}: the setup lacks {' and '.join(missing)}; evaluate again")
    return Member(
        name=path.parent.name,
        kind=setup["kind"],
        num_layers=int(setup["layers"]),
        results=results,
        blocks=setup.get("trained_blocks"),
        hours=setup.get("trained_hours"),
        speed=speed,
        curve=_read_curve(path.parent),
    )


def _read_curve(directory: Path) -> tuple[Learned, ...]:
    """The rows of metrics that were measured on held-out text."""
    if not (directory / METRICS).is_file():
        return ()
    try:
        return tuple(
            Learned(row["blocks"], row["hours"], row["mean_committed_greedy"])
            for row in read_metrics(directory)
            if "mean_committed_greedy" in row
        )
    except (ValueError, KeyError) as error:
        raise ConfigurationError(f"{directory / METRICS}: not the metrics of a run ({error})") from error


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigurationError(f"{path}: not JSON ({error})") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path}: not a JSON object")
    return document
