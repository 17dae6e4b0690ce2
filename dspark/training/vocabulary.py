"""The draft vocabulary: the target tokens a drafter can propose."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dspark.training.feature_source import FeatureSource


def choose_draft_vocabulary(cache: FeatureSource, size: int) -> tuple[Tensor, float]:
    """The `size` most frequent response tokens, ascending, and the share of response tokens they cover.

    Ties go to the lower id, so the choice depends on the data only.
    """
    counts = np.zeros(cache.vocab_size, dtype=np.int64)
    for offset, length, prompt_len in cache.index:
        tokens = cache.tokens(np.arange(offset + prompt_len, offset + length))
        counts += np.bincount(tokens, minlength=len(counts))
    chosen = np.sort(np.lexsort((np.arange(len(counts)), -counts))[:size])
    return torch.from_numpy(chosen.astype(np.int64)), float(counts[chosen].sum() / counts.sum())


def invert_vocabulary(d2t: Tensor, vocab_size: int) -> Tensor:
    """Draft id of each target id, -1 outside: [Vd] to [V] int64."""
    t2d = torch.full((vocab_size,), -1, dtype=torch.int64)
    t2d[d2t] = torch.arange(len(d2t))
    return t2d
