"""What the service needs from a draft engine. `load_engine_for` makes one that fits; so does a fake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dspark.decoding.types import DraftBlock, DraftRequest
from dspark.rounds.local import DraftEngine


class DraftingEngine(DraftEngine, Protocol):
    """Holds the drafter and its context of each request. Synchronous; one thread uses it."""

    def is_ready(self, request: DraftRequest, /) -> bool:
        """Whether the features of all tokens before the anchor have arrived."""
        ...

    def calibration_errors(self) -> Mapping[str, Sequence[float]]:
        """Calibration error of confidences lately, by position, for each set of the calibration."""
        ...


@dataclass(frozen=True, slots=True)
class TimedDraft:
    """Blocks of one forward and the nanoseconds it took."""

    blocks: Sequence[DraftBlock]
    draft_ns: int
