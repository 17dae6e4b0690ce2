"""Sequential scaling (paper §3.2.1, with offsets): confidences that mean what they say, by position."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark.scheduling.survival import survival

Floats = npt.NDArray[np.floating]

# Temperatures tried at each position: steps of a tenth, from a fifth to five.
_GRID = np.exp(np.linspace(np.log(0.2), np.log(5.0), 33))
# Calibration errors of N blocks closer than this over sqrt(N) are as good as equal.
_NOISE = 0.1
LARGEST_OFFSET = 8.0
# of an offset, and the most steps towards it: as many as halving takes
_PRECISION = 1e-6
_MOST_STEPS = 24


def expected_calibration_error(
    predicted: Floats,  # [N] in [0, 1]
    outcomes: npt.NDArray[np.generic],  # [N], 0 or 1, or probabilities
    *,
    num_bins: int = 15,
) -> float:
    """Mean gap between what was predicted and what came true, over bins of equal width.

    Returns:
        sum over bins of (share of the bin) x |mean predicted - mean outcome|; 0 without data.
    """
    assert predicted.shape == outcomes.shape, (predicted.shape, outcomes.shape)
    assert predicted.ndim == 1, predicted.shape
    if predicted.size == 0:
        return 0.0
    bins = np.minimum((predicted * num_bins).astype(np.int64), num_bins - 1)
    gaps = np.bincount(bins, weights=predicted - outcomes.astype(np.float64), minlength=num_bins)
    return float(np.abs(gaps).sum() / predicted.size)


@dataclass(frozen=True, slots=True)
class SequentialScaling:
    """A temperature and an offset per block position: c = sigmoid(logit / T + b), which keeps the order.

    The offset is ours: a head that is too sure by a constant, as one trained on the target's own text and
    used on drafts is, cannot be mended by temperatures, which leave a confidence of one half where it is.
    """

    # [G], > 0
    temperatures: tuple[float, ...]
    # [G]
    offsets: tuple[float, ...]

    @classmethod
    def identity(cls, gamma: int) -> SequentialScaling:
        """Leaves confidences as they are."""
        return cls((1.0,) * gamma, (0.0,) * gamma)

    @classmethod
    def fit(
        cls,
        logits: Floats,  # [N, G] of the confidence head
        survived: npt.NDArray[np.generic],  # [N, G], whether draft k and all before it were accepted
        *,
        has_offsets: bool = True,
    ) -> SequentialScaling:
        """Fit on held-out blocks, positions left to right, the earlier positions already fixed.

        Each temperature of a grid has one offset with which the mean of the *cumulative product* is what
        survived. The temperature is chosen whose calibration error of that product is smallest; of those that
        are as good up to noise, the one closest to 1. Without offsets it is the paper's own scaling, which
        other engines apply.
        """
        assert logits.shape == survived.shape, (logits.shape, survived.shape)
        assert logits.ndim == 2, logits.shape
        before = np.ones(logits.shape[0])
        temperatures, offsets = [], []
        for position in range(logits.shape[1]):
            column, outcomes = logits[:, position].astype(np.float64), survived[:, position]
            temperature, offset = _fit_position(column, before, outcomes, has_offset=has_offsets)
            temperatures.append(temperature)
            offsets.append(offset)
            before = before * sigmoid(column / temperature + offset)
        return cls(tuple(temperatures), tuple(offsets))

    def apply(self, logits: Floats) -> npt.NDArray[np.float64]:  # logits [..., G'], G' <= G
        """Calibrated conditional confidences of the shape of `logits`."""
        return self.at(slice(logits.shape[-1]), logits)

    def at(
        self, positions: slice | npt.NDArray[np.int64], logits: Floats
    ) -> npt.NDArray[np.float64]:  # both [..., N]
        """The same for logits of any positions in a block."""
        temperatures, offsets = _array(self.temperatures), _array(self.offsets)
        return sigmoid(logits.astype(np.float64) / temperatures[positions] + offsets[positions])

    def undo(self, confidence: Floats) -> npt.NDArray[np.float64]:  # confidence [..., G'] in (0, 1)
        """The logits that `apply` made these confidences of."""
        length = confidence.shape[-1]
        scaled = np.log(confidence) - np.log1p(-confidence) - _array(self.offsets)[:length]
        logits: npt.NDArray[np.float64] = scaled * _array(self.temperatures)[:length]
        return logits

    def survival_errors(self, logits: Floats, survived: npt.NDArray[np.generic]) -> list[float]:
        """Calibration error of the survival at each position, [G]."""
        predicted = survival(self.apply(logits))
        return [
            expected_calibration_error(predicted[:, position], survived[:, position])
            for position in range(logits.shape[1])
        ]


@functools.lru_cache(maxsize=64)
def _array(values: tuple[float, ...]) -> npt.NDArray[np.float64]:
    """Made once: a round has no time to lose on it."""
    array = np.array(values)
    array.flags.writeable = False
    return array


def _fit_position(
    logits: npt.NDArray[np.float64],  # [N]
    before: npt.NDArray[np.float64],  # [N] survival up to the position before
    survived: npt.NDArray[np.generic],  # [N]
    *,
    has_offset: bool,
) -> tuple[float, float]:
    """Temperature and offset of one position."""
    noise = _NOISE / np.sqrt(max(len(logits), 1))
    found = []
    for temperature in _GRID.tolist():
        offset = 0.0
        if has_offset:
            offset = _offset_of_mean(logits / temperature, before, float(survived.mean()))
        predicted = before * sigmoid(logits / temperature + offset)
        found.append((expected_calibration_error(predicted, survived), temperature, offset))
    least = min(error for error, _, _ in found)
    as_good = [(abs(np.log(one[1])), *one[1:]) for one in found if one[0] <= least + noise]
    _, temperature, offset = min(as_good)
    return temperature, offset


def _offset_of_mean(scaled: npt.NDArray[np.float64], before: npt.NDArray[np.float64], wanted: float) -> float:
    """The b with mean(before * sigmoid(scaled + b)) = wanted, within the largest offsets.

    Newton's method, halving the interval where a step would leave it: the mean rises with b.
    """
    low, high, offset = -LARGEST_OFFSET, LARGEST_OFFSET, 0.0
    for _ in range(_MOST_STEPS):
        chances = sigmoid(scaled + offset)
        weighted = before * chances
        excess = float(weighted.mean()) - wanted
        low, high = (offset, high) if excess < 0 else (low, offset)
        slope = float((weighted * (1.0 - chances)).mean())
        step = offset - excess / slope if slope > 0 else high
        following = step if low < step < high else 0.5 * (low + high)
        if abs(following - offset) < _PRECISION:
            return following
        offset = following
    return offset


def sigmoid(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """1 / (1 + exp(-x)) without overflow."""
    result: npt.NDArray[np.float64] = 0.5 * (1.0 + np.tanh(0.5 * values))
    return result
