"""Confidences that go on meaning what they say: the scaling is refitted by what became of past blocks.

Losslessness: a confidence is changed by outcomes of earlier rounds only, so a plan learns nothing through it
of the drafts it is about.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark.scheduling.calibration import LARGEST_OFFSET, SequentialScaling, sigmoid
from dspark.scheduling.ranking import Floats

# Outcomes of one position after which an old one counts for 1 / e.
_MEMORY = 2000.0
# How firmly the fitted slope and offset are held on to, in outcomes of the curvature of an even chance.
_PRIOR = 0.25 * np.array([400.0, 100.0])
_SLOPES = (0.2, 5.0)
_NUM_BINS = 15


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Drafts that were verified and behind which nothing had been rejected: one entry each.

    Whether a draft is among them depends on confidences and on the drafts before it, never on itself, so
    that they are a fair sample of the conditional confidence.

    Attributes:
        positions: [N] in the block.
        logits: [N] of the confidence head.
        is_accepted: [N].
    """

    positions: npt.NDArray[np.int64]
    logits: Floats
    is_accepted: npt.NDArray[np.bool_]

    @classmethod
    def of_blocks(cls, blocks: list[tuple[npt.NDArray[np.floating], int, int]]) -> Outcomes:
        """From (logits of the block, drafts verified, drafts accepted) of some blocks."""
        lengths = np.array([min(accepted + 1, verified) for _, verified, accepted in blocks], dtype=np.int64)
        accepted = np.array([accepted for _, _, accepted in blocks], dtype=np.int64)
        ends = np.cumsum(lengths)
        positions = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
        parts = [logits[:length] for (logits, _, _), length in zip(blocks, lengths.tolist(), strict=True)]
        return cls(
            positions,
            np.concatenate(parts, dtype=np.float64) if parts else np.zeros(0),
            positions < np.repeat(accepted, lengths),
        )


class OnlineScaling:
    """Logistic regression of acceptance on the logit, by position, with forgetting.

    Minimises the log loss of the outcomes, older ones weighing less, plus a pull towards the scaling that was
    fitted on held-out blocks, by one Newton step per batch of outcomes.
    """

    def __init__(self, fitted: SequentialScaling) -> None:
        self.scaling = fitted
        self._start = np.stack(
            [1.0 / np.array(fitted.temperatures), np.array(fitted.offsets)], axis=1
        )  # [G, 2]
        self._now = self._start.copy()
        gamma = len(self._start)
        self._curvature = np.zeros((gamma, 2, 2))
        # decayed sums by position and bin: predicted, accepted, number
        self._bins = np.zeros((3, gamma, _NUM_BINS))

    def observe(self, outcomes: Outcomes) -> None:
        """Take in outcomes and change `scaling`."""
        if len(outcomes.positions) == 0:
            return
        positions, logits, accepted = (
            outcomes.positions,
            outcomes.logits,
            outcomes.is_accepted.astype(np.float64),
        )
        slopes, offsets = self._now[positions].T
        predicted = sigmoid(slopes * logits + offsets)
        counts = self._sums(positions, np.ones_like(predicted))
        kept = np.exp(-counts / _MEMORY)
        self._note(positions, predicted, accepted, kept)
        inputs = np.stack([logits, np.ones_like(logits)])  # [2, N]
        gradient = np.stack([self._sums(positions, (predicted - accepted) * one) for one in inputs], axis=1)
        gradient += (1.0 - kept)[:, None] * _PRIOR * (self._now - self._start)
        spread = predicted * (1.0 - predicted)
        self._curvature *= kept[:, None, None]
        for row in range(2):
            for column in range(2):
                self._curvature[:, row, column] += self._sums(
                    positions, spread * inputs[row] * inputs[column]
                )
        held = self._curvature + np.diag(_PRIOR)
        self._now -= np.linalg.solve(held, gradient[:, :, None])[:, :, 0]
        self._now[:, 0] = np.clip(self._now[:, 0], *_SLOPES)
        self._now[:, 1] = np.clip(self._now[:, 1], -LARGEST_OFFSET, LARGEST_OFFSET)
        self.scaling = SequentialScaling(
            tuple((1.0 / self._now[:, 0]).tolist()), tuple(self._now[:, 1].tolist())
        )

    def errors(self) -> list[float]:
        """Calibration error of the conditional confidence at each position lately, [G]; 0 without any."""
        predicted, accepted, number = self._bins
        gaps = np.abs(predicted - accepted).sum(axis=1)
        errors: list[float] = (gaps / np.maximum(number.sum(axis=1), 1e-9)).tolist()
        return errors

    def _note(
        self, positions: npt.NDArray[np.int64], predicted: Floats, accepted: Floats, kept: Floats
    ) -> None:
        places = positions * _NUM_BINS + np.minimum((predicted * _NUM_BINS).astype(np.int64), _NUM_BINS - 1)
        self._bins *= kept[:, None]
        for row, values in zip(self._bins, (predicted, accepted, np.ones_like(predicted)), strict=True):
            row += np.bincount(places, weights=values, minlength=row.size).reshape(row.shape)

    def _sums(self, positions: npt.NDArray[np.int64], values: Floats) -> Floats:
        """Sums of values by position, [G]."""
        return np.bincount(positions, weights=values, minlength=len(self._start)).astype(np.float64)
