"""Sequential Temperature Scaling (paper §3.2.1): confidences that mean what they say, by position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark.scheduling.survival import survival

Floats = npt.NDArray[np.floating]

# Temperatures tried at each position: fine steps of one part in twenty, from a tenth to ten.
_GRID = np.exp(np.linspace(np.log(0.1), np.log(10.0), 93))


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
class SequentialTemperatures:
    """One temperature per block position; dividing a logit by it keeps the order of confidences."""

    # [G], > 0
    temperatures: tuple[float, ...]

    @classmethod
    def identity(cls, gamma: int) -> SequentialTemperatures:
        """Leaves confidences as they are."""
        return cls((1.0,) * gamma)

    @classmethod
    def fit(
        cls,
        logits: Floats,  # [N, G] of the confidence head
        survived: npt.NDArray[np.generic],  # [N, G], whether draft k and all before it were accepted
    ) -> SequentialTemperatures:
        """Fit on held-out blocks, positions left to right.

        At each position the temperature is chosen from a grid so that the calibration error of the
        *cumulative product* is smallest, with the earlier positions already fixed; of equally good
        ones the one closest to 1.
        """
        assert logits.shape == survived.shape, (logits.shape, survived.shape)
        assert logits.ndim == 2, logits.shape
        before = np.ones(logits.shape[0])
        chosen = []
        candidates = sorted(_GRID.tolist(), key=lambda temperature: abs(np.log(temperature)))
        for position in range(logits.shape[1]):
            column = logits[:, position].astype(np.float64)
            errors = [
                expected_calibration_error(before * _sigmoid(column / temperature), survived[:, position])
                for temperature in candidates
            ]
            chosen.append(candidates[int(np.argmin(errors))])
            before = before * _sigmoid(column / chosen[-1])
        return cls(tuple(chosen))

    def apply(self, logits: Floats) -> npt.NDArray[np.float64]:  # logits [..., G'], G' <= G
        """Calibrated conditional confidences of the shape of `logits`."""
        temperatures = np.array(self.temperatures[: logits.shape[-1]])
        return _sigmoid(logits.astype(np.float64) / temperatures)

    def survival_errors(self, logits: Floats, survived: npt.NDArray[np.generic]) -> list[float]:
        """Calibration error of the survival at each position, [G]."""
        predicted = survival(self.apply(logits))
        return [
            expected_calibration_error(predicted[:, position], survived[:, position])
            for position in range(logits.shape[1])
        ]


def _sigmoid(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """1 / (1 + exp(-x)) without overflow."""
    result: npt.NDArray[np.float64] = 0.5 * (1.0 + np.tanh(0.5 * values))
    return result
