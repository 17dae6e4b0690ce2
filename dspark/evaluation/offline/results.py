"""What an evaluation decoded, in columns, and the file that keeps it. All figures are made of this."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.errors import ConfigurationError
from dspark.scheduling.calibration import SequentialScaling

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

FILE = "rounds.json"
_FORMAT = "dspark-evaluation"
_VERSION = 1
_COLUMNS = ("prompt", "start", "scheduled", "accepted", "committed")
# Decimals of a logit that are kept, in memory as in the file: a confidence moves by less than 2e-4.
DECIMALS = 3


class PassKind(Enum):
    """How the prompts were decoded in one pass.

    FULL: every block verified whole; rejection sampling above temperature 0.
    SERVED: as `dspark up` serves, under the policy `auto`.
    COUPLED: every block verified whole, coupled sampling.
    DENSE: greedy; a whole block at every position of the text, and what would have been accepted of it.
    THRESHOLD: every block cut at its first confidence below a threshold.
    """

    FULL = "full"
    SERVED = "served"
    COUPLED = "coupled"
    DENSE = "dense"
    THRESHOLD = "threshold"


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds of finished outputs, N of them, in the order of prompts and of the text.

    Attributes:
        prompt: [N] place of the prompt in `Results.prompts`.
        start: [N] tokens of the output before the round; the first token, the prefill's, is no round.
        scheduled: [N] drafts verified.
        accepted: [N] drafts accepted, those behind an end of text left out.
        committed: [N] tokens committed; equal to `accepted` exactly where the text ended inside the drafts.
        logits: [N, G] of the confidences before any calibration, to three decimals, NaN where there was no
            draft; None where the pass did not keep them.
    """

    prompt: Ints
    start: Ints
    scheduled: Ints
    accepted: Ints
    committed: Ints
    logits: Floats | None = None

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in _COLUMNS}
        lengths |= {len(self.logits)} if self.logits is not None else set()
        assert len(lengths) == 1, f"columns of {sorted(lengths)} rounds"

    def __len__(self) -> int:
        return len(self.prompt)

    @property
    def ended_inside(self) -> npt.NDArray[np.bool_]:
        """[N] whether the text ended with an accepted draft, so that there is no bonus token."""
        ends: npt.NDArray[np.bool_] = self.committed == self.accepted
        return ends

    @property
    def proposed(self) -> Ints:
        """[N] DeepSpec's effective proposal length: drafts that were judged, up to the end of the text."""
        return np.where(self.ended_inside, self.accepted, self.scheduled).astype(np.int32)

    def where(self, is_kept: npt.NDArray[np.bool_]) -> Rounds:
        """Those of a mask [N]."""
        columns = {name: getattr(self, name)[is_kept] for name in _COLUMNS}
        return Rounds(**columns, logits=None if self.logits is None else self.logits[is_kept])


@dataclass(frozen=True, slots=True)
class Pass:
    """All prompts decoded once.

    Attributes:
        threshold: least confidence of a draft where the kind is THRESHOLD, else None.
    """

    kind: PassKind
    temperature: float
    rounds: Rounds
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """One evaluation.

    Attributes:
        setup: models, dtype and options in words and numbers, for the reader.
        gamma: drafts of a whole block.
        max_new_tokens: rounds that begin later are not in the passes.
        tasks: task of each prompt, [P].
        passes: at least one.
        shipped: the calibration beside the drafter, "greedy" and "sampling".
        has_confidence_head: without one a confidence is the probability of the best token.
    """

    setup: Mapping[str, Any]
    gamma: int
    max_new_tokens: int
    tasks: tuple[str, ...]
    passes: tuple[Pass, ...]
    shipped: Mapping[str, SequentialScaling] = field(default_factory=dict)
    has_confidence_head: bool = True

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Those decoded at, in their order."""
        return tuple(dict.fromkeys(one.temperature for one in self.passes))

    def passes_of(self, kind: PassKind, temperature: float) -> list[Pass]:
        """All of a kind at a temperature."""
        return [one for one in self.passes if (one.kind, one.temperature) == (kind, temperature)]

    def scaling(self, temperature: float) -> SequentialScaling:
        """The shipped calibration of a temperature; the identity where there is none."""
        name = "greedy" if temperature == 0.0 else "sampling"
        return self.shipped.get(name) or SequentialScaling.identity(self.gamma)


def results_text(results: Results) -> str:
    """What `read_results` reads, as JSON; docs/evaluation.md describes it."""
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "setup": dict(results.setup),
        "gamma": results.gamma,
        "max_new_tokens": results.max_new_tokens,
        "has_confidence_head": results.has_confidence_head,
        "tasks": list(results.tasks),
        "shipped": {
            name: {"temperatures": list(one.temperatures), "offsets": list(one.offsets)}
            for name, one in results.shipped.items()
        },
        "passes": [_pass_document(one) for one in results.passes],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"


def read_results(path: Path) -> Results:
    """Read a file of `results_text`.

    Raises:
        ConfigurationError: it cannot be read, is something else, of another version, or damaged.
    """
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ConfigurationError(f"{path}: not the {FILE} of a `dspark evaluate --report DIR`")
    if document.get("version") != _VERSION:
        raise ConfigurationError(
            f"{path}: version is {document.get('version')!r} and this dspark reads {_VERSION}; evaluate again"
        )
    try:
        return _results_of(document)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(f"{path}: damaged ({error!r}); evaluate again") from error


def _pass_document(one: Pass) -> dict[str, Any]:
    columns: dict[str, Any] = {name: getattr(one.rounds, name).tolist() for name in _COLUMNS}
    if one.rounds.logits is not None:
        rows = one.rounds.logits.astype(np.float64).round(DECIMALS).tolist()
        columns["logits"] = [[value for value in row if value == value] for row in rows]
    return {
        "kind": one.kind.value,
        "temperature": one.temperature,
        "threshold": one.threshold,
        "rounds": columns,
    }


def _results_of(document: Mapping[str, Any]) -> Results:
    gamma = int(document["gamma"])
    return Results(
        setup=document["setup"],
        gamma=gamma,
        max_new_tokens=int(document["max_new_tokens"]),
        tasks=tuple(document["tasks"]),
        passes=tuple(_pass_of(one, gamma) for one in document["passes"]),
        shipped={
            name: SequentialScaling(tuple(one["temperatures"]), tuple(one["offsets"]))
            for name, one in document["shipped"].items()
        },
        has_confidence_head=bool(document["has_confidence_head"]),
    )


def _pass_of(document: Mapping[str, Any], gamma: int) -> Pass:
    columns = document["rounds"]
    logits = padded(columns["logits"], gamma) if "logits" in columns else None
    rounds = Rounds(**{name: np.asarray(columns[name], dtype=np.int32) for name in _COLUMNS}, logits=logits)
    return Pass(
        PassKind(document["kind"]), float(document["temperature"]), rounds, threshold=document["threshold"]
    )


def padded(rows: Sequence[Sequence[float] | npt.NDArray[np.floating]], gamma: int) -> Floats:
    """Rows of at most gamma numbers as [N, G], NaN behind the last number of each."""
    table = np.full((len(rows), gamma), np.nan, dtype=np.float32)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return table
