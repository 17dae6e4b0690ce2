"""Features kept while responses are generated, so that the target need not read its own text again.

Rows of a target do not depend on what is computed beside them in exact mode, so what is kept are the bits
that reading the finished response would give; elsewhere they differ by rounding.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.engine.attention import RaggedStep
from dspark.engine.forward import TargetForward
from dspark.engine.loading import LoadedTarget
from dspark.engine.taps import feature_rows
from dspark.training.features import Rows, log_norms


class _WithLastState:
    """A target whose last hidden state counts as one more tap."""

    def __init__(self, forward: TargetForward) -> None:
        self._forward = forward
        self.use_kernels = forward.use_kernels

    def hidden(self, token_ids: Tensor, positions: Tensor, step: RaggedStep) -> tuple[Tensor, Tensor]:
        """See TargetForward."""
        last, taps = self._forward.hidden(token_ids, positions, step)
        return last, torch.cat((taps, last), dim=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """See TargetForward."""
        return self._forward.logits(hidden)


def with_last_state(target: LoadedTarget) -> LoadedTarget:
    """The target, handing out what a feature cache holds of each token."""
    return replace(target, forward=_WithLastState(target.forward))


@torch.inference_mode()
def kept_rows(target: LoadedTarget, states: npt.NDArray[np.generic]) -> Rows:
    """What a feature cache holds of tokens, from what `with_last_state(target)` handed out: [T, L*H + H]."""
    rows, size = feature_rows(states), target.config.hidden_size
    last = rows[:, -size:].contiguous()
    return rows[:, :-size].contiguous(), last, log_norms(target.forward, last)
