"""Short words for what tests of prompt lookup do over and over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dspark.decoding.types import Acceptance, DraftRequest, FeatureBatch, SamplingParams

GREEDY = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)


def committed(
    tokens: Sequence[int], start: int = 0, *, name: str = "a", epoch: int = 1, width: int = 0
) -> FeatureBatch:
    """Tokens as they come from the target."""
    features = np.zeros((len(tokens), width), dtype=np.float32)
    return FeatureBatch(name, epoch, start, np.array(tokens, dtype=np.int32), features)


def ask(
    text: Sequence[int],
    *,
    name: str = "a",
    epoch: int = 1,
    sampling: SamplingParams = GREEDY,
    max_drafts: int = 4,
    num_verified: int = 0,
    max_copied: int = 0,
) -> DraftRequest:
    """What is asked when so much is committed; its last token is the anchor."""
    return DraftRequest(name, epoch, len(text), text[-1], sampling, max_drafts, num_verified, max_copied)
