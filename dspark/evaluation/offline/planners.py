"""Policies that only an evaluation wants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dspark.rounds.planner import FreePlanner
from dspark.rounds.step_ahead import StepAhead
from dspark.scheduling.calibration import SequentialScaling
from dspark.scheduling.draft_length import DraftLength
from dspark.scheduling.ranking import Confidences


class WholeBlockPlanner(FreePlanner):
    """Drafts whole blocks for all; how much is verified is the policy's."""

    def num_to_draft(self, num_requests: int, num_cohorts: int = 1) -> int:
        """All."""
        return num_requests

    def draft_len(self, history: DraftLength, gamma: int) -> int:
        """Whole blocks."""
        return gamma


class DensePlanner(WholeBlockPlanner):
    """Verifies nothing, so that a block is drafted at every position of the text."""

    def plan(self, step: StepAhead, confidences: Sequence[Confidences]) -> list[int]:
        """No drafts."""
        return [0] * len(confidences)


class RawThresholdPlanner(WholeBlockPlanner):
    """Cuts blocks at their first confidence below a threshold, before any calibration, as DeepSpec does.

    Calibration keeps the order of confidences at a position, so the threshold is calibrated instead.
    """

    def __init__(self, threshold: float, in_use: SequentialScaling) -> None:
        """Set the threshold.

        Args:
            threshold: least confidence of the head itself; 0 cuts nothing, 1 everything.
            in_use: the calibration of the confidences that the plan is given.
        """
        with np.errstate(divide="ignore"):
            logit = np.log(np.float64(threshold)) - np.log1p(-np.float64(threshold))
        self._least = in_use.apply(np.full(len(in_use.temperatures), logit))

    def plan(self, step: StepAhead, confidences: Sequence[Confidences]) -> list[int]:
        """Every block by itself."""
        return [int(np.logical_and.accumulate(one >= self._least[: len(one)]).sum()) for one in confidences]
