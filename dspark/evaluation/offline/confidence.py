"""How good predicted survivals are, by position and in summary, as DeepSpec's evaluator measures them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
_NUM_BINS = 20
_NUM_FINE_BINS = 1000
_SMALLEST = 1e-8


@dataclass(frozen=True, slots=True)
class Bin:
    """One bar of a reliability diagram: predictions from `low` on, below `low` + 1/20."""

    low: float
    count: int
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True)
class PositionQuality:
    """Predictions at one position.

    Attributes:
        count: how many.
        ece: over 20 bins of equal width, mean gap between prediction and outcome.
        auroc: probability that a survivor was predicted higher than another, ties a half; None where all
            survived or none did.
        brier: mean squared error.
        predicted: mean prediction.
        observed: mean outcome.
        bins: those that hold a prediction.
    """

    count: int
    ece: float
    auroc: float | None
    brier: float
    predicted: float
    observed: float
    bins: tuple[Bin, ...] = ()


@dataclass(frozen=True, slots=True)
class Quality:
    """By position, and the mean over positions, each weighted by its count.

    Attributes:
        summary: without bins; None where nothing was predicted.
    """

    positions: tuple[PositionQuality, ...]
    summary: PositionQuality | None


def quality_of(
    survival: Doubles,  # [N, G]
    accepted: npt.NDArray[np.integer],  # [N]
    proposed: npt.NDArray[np.integer],  # [N]
) -> Quality:
    """Judge predicted survivals; draft k of a block is a prediction where k < proposed.

    Its outcome is whether it and all before it were accepted. Positions behind the last prediction are
    left out.
    """
    assert survival.ndim == 2, survival.shape
    assert len(survival) == len(accepted) == len(proposed), (len(survival), len(accepted), len(proposed))
    positions = []
    for place in range(survival.shape[1]):
        is_judged = proposed > place
        if not is_judged.any():
            break
        outcomes = (accepted[is_judged] > place).astype(np.float64)
        positions.append(judge_position(survival[is_judged, place], outcomes))
    return Quality(tuple(positions), _summary(positions))


def judge_position(predicted: Doubles, outcomes: Doubles) -> PositionQuality:
    """Judge one position.

    Args:
        predicted: [N], N > 0, probabilities.
        outcomes: [N], 0 or 1.
    """
    predicted = np.clip(predicted, _SMALLEST, 1.0 - _SMALLEST)
    coarse = _bins_of(predicted, _NUM_BINS)
    counts = np.bincount(coarse, minlength=_NUM_BINS)
    sums = [np.bincount(coarse, weights=one, minlength=_NUM_BINS) for one in (predicted, outcomes)]
    return PositionQuality(
        count=len(predicted),
        ece=float(np.abs(sums[0] - sums[1]).sum() / len(predicted)),
        auroc=_auroc(predicted, outcomes),
        brier=float(((predicted - outcomes) ** 2).mean()),
        predicted=float(predicted.mean()),
        observed=float(outcomes.mean()),
        bins=tuple(
            Bin(place / _NUM_BINS, int(count), float(sums[0][place] / count), float(sums[1][place] / count))
            for place, count in enumerate(counts.tolist())
            if count
        ),
    )


def _auroc(predicted: Doubles, outcomes: Doubles) -> float | None:
    """From a histogram of 1000 bins, as DeepSpec: predictions in one bin are a tie."""
    fine = _bins_of(predicted, _NUM_FINE_BINS)
    good = np.bincount(fine, weights=outcomes, minlength=_NUM_FINE_BINS)
    bad = np.bincount(fine, weights=1.0 - outcomes, minlength=_NUM_FINE_BINS)
    num_pairs = good.sum() * bad.sum()
    if num_pairs == 0:
        return None
    bad_below = np.cumsum(bad) - bad
    return float((good * (bad_below + 0.5 * bad)).sum() / num_pairs)


def _bins_of(predicted: Doubles, num_bins: int) -> npt.NDArray[np.int64]:
    return np.minimum((predicted * num_bins).astype(np.int64), num_bins - 1)


def _summary(positions: Sequence[PositionQuality]) -> PositionQuality | None:
    if not positions:
        return None

    def mean(read: Callable[[PositionQuality], float | None]) -> float | None:
        pairs = [(one.count, value) for one in positions if (value := read(one)) is not None]
        return sum(n * value for n, value in pairs) / sum(n for n, _ in pairs) if pairs else None

    return PositionQuality(
        count=sum(one.count for one in positions),
        ece=mean(lambda one: one.ece) or 0.0,
        auroc=mean(lambda one: one.auroc),
        brier=mean(lambda one: one.brier) or 0.0,
        predicted=mean(lambda one: one.predicted) or 0.0,
        observed=mean(lambda one: one.observed) or 0.0,
    )
