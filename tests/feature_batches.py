"""Feature batches of tests that do not care which tokens stand where."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dspark.decoding.types import FeatureBatch


def feature_batch(request_id: str, epoch: int, start: int, rows: npt.NDArray[np.generic]) -> FeatureBatch:
    """Features whose token ids are their positions."""
    token_ids = np.arange(start, start + len(rows), dtype=np.int32)
    return FeatureBatch(request_id, epoch, start, token_ids, rows)
