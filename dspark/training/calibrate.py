"""Fits the calibration of a drafter on held-out blocks (sequential scaling, paper §3.2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dspark.models.calibration import Calibration
from dspark.models.drafter import Drafter
from dspark.scheduling.calibration import SequentialScaling
from dspark.training.blocks import BlockBatch
from dspark.training.losses import LossWeights
from dspark.training.objective import run_blocks


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """The fit, and the calibration error of the survival at each position before and after it."""

    calibration: Calibration
    # [G] each
    greedy_before: list[float]
    greedy_after: list[float]
    sampling_before: list[float]
    sampling_after: list[float]


@torch.no_grad()
def calibrate(drafter: Drafter, held_out: Sequence[BlockBatch]) -> CalibrationResult:
    """Fit scalings for greedy and for sampled decoding.

    Under teacher forcing a block's survival at k is the product of what was accepted up to k: agreement of
    the argmaxes when greedy, the overlap of the distributions (the chance of acceptance) when sampling.

    Args:
        drafter: trained.
        held_out: blocks it was not trained on.
    """
    logits, greedy, sampling = [], [], []
    for batch in held_out:
        _, scores = run_blocks(drafter, batch, LossWeights(), decay=4.0)
        rows = scores.is_valid.all(-1)
        logits.append(scores.confidence_logits[rows].numpy())
        greedy.append(torch.cumprod(scores.agree[rows], -1).numpy())
        sampling.append(torch.cumprod(scores.overlap[rows], -1).numpy())
    stacked = np.concatenate(logits)
    identity = SequentialScaling.identity(drafter.config.gamma)
    fits, before, after = [], [], []
    for outcomes in (np.concatenate(greedy), np.concatenate(sampling)):
        fit = SequentialScaling.fit(stacked, outcomes)
        fits.append(fit)
        before.append(identity.survival_errors(stacked, outcomes))
        after.append(fit.survival_errors(stacked, outcomes))
    calibration = Calibration(fits[0], fits[1])
    return CalibrationResult(calibration, before[0], after[0], before[1], after[1])
