"""What blocks are drawn from: samples of one target, and what it says about their tokens."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor


class FeatureSource(Protocol):
    """Samples one after another; tokens are numbered through all of them.

    A feature cache reads them from a disk, `OnlineFeatures` asks the target.
    """

    target_layer_ids: tuple[int, ...]
    hidden_size: int
    vocab_size: int
    # [samples, 3]: number of the first token, length, prompt length
    index: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def tokens(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Token ids, same shape as `rows`."""
        ...

    def features(self, start: int, stop: int) -> Tensor:
        """Tapped features of tokens start..stop of one sample, bfloat16 [T, L*H]."""
        ...

    def last(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Final hidden states of the tokens `rows`, bfloat16 [N, H]."""
        ...

    def log_norm(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Log-normalisers of the tokens `rows`, float32 [N]."""
        ...
