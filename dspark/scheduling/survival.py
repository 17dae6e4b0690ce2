"""From conditional confidences to the probability that a whole prefix survives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def survival(confidence: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Running product along the last axis: survival[j] = prod of confidence[0..j] (paper §3.2.2).

    Args:
        confidence: [..., G], each in [0, 1], conditional on all drafts before it.

    Returns:
        [..., G] float64, never rising along a block.
    """
    product: npt.NDArray[np.float64] = np.cumprod(confidence, axis=-1, dtype=np.float64)
    return product
