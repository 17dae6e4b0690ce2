"""What became of the blocks that were drafted, and the calibration that follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark.decoding.types import Acceptance, DraftRequest
from dspark.models.calibration import Calibration
from dspark.scheduling.online_calibration import OnlineScaling, Outcomes

Logits = npt.NDArray[np.float32]

# Blocks whose outcomes are taken in at once.
_BATCH = 32


@dataclass(frozen=True, slots=True)
class PastBlock:
    """A block as its request remembers it: where it began, and its confidence logits [G]."""

    base_committed_len: int
    logits: Logits


class OnlineCalibration:
    """A calibration that is refitted by outcomes, for greedy and for sampled requests."""

    def __init__(self, fitted: Calibration) -> None:
        self._scalings = {"greedy": OnlineScaling(fitted.greedy), "sampling": OnlineScaling(fitted.sampling)}
        self._waiting: dict[str, list[tuple[Logits, int, int]]] = {name: [] for name in self._scalings}

    def note(self, request: DraftRequest, block: PastBlock | None) -> None:
        """What a request says about its last block; kept until `learn`."""
        if block is None or request.num_verified == 0:
            return
        num_accepted = request.base_committed_len - block.base_committed_len - 1
        if 0 <= num_accepted <= request.num_verified <= len(block.logits):
            name = "greedy" if request.sampling.acceptance is Acceptance.GREEDY else "sampling"
            self._waiting[name].append((block.logits, request.num_verified, num_accepted))

    def learn(self) -> Calibration | None:
        """Take in what was noted, once it is worth it; returns the new calibration if there is one."""
        ripe = [name for name, blocks in self._waiting.items() if len(blocks) >= _BATCH]
        for name in ripe:
            self._scalings[name].observe(Outcomes.of_blocks(self._waiting[name]))
            self._waiting[name] = []
        return Calibration(**{name: one.scaling for name, one in self._scalings.items()}) if ripe else None

    def errors(self) -> dict[str, Sequence[float]]:
        """Calibration error of the conditional confidences by position, for greedy and sampled requests."""
        return {name: scaling.errors() for name, scaling in self._scalings.items()}
