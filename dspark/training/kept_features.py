"""Features kept while responses are generated, so that the target need not read its own text again.

Rows of a target do not depend on what is computed beside them in exact mode, so what is kept are the bits
that reading the finished response would give; elsewhere they differ by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.engine.attention import RaggedStep
from dspark.engine.forward import TargetForward
from dspark.engine.loading import LoadedTarget
from dspark.engine.taps import feature_rows
from dspark.training.feature_files import GrowingFiles
from dspark.training.features import log_norms, origin_of
from dspark.training.responses import Sample


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


class KeptFeatures:
    """A feature cache that grows with every response."""

    def __init__(
        self,
        directory: Path,
        known: Sequence[Sample],
        target: LoadedTarget,
        target_layer_ids: Sequence[int],
    ) -> None:
        """Go on behind the samples that the cache holds.

        Args:
            directory: of the cache.
            known: its samples.
            target: as it was given to `build_cache`.
            target_layer_ids: its taps.
        """
        self._forward = target.forward
        self._files = GrowingFiles(directory, origin_of(target, target_layer_ids), known)
        self._hidden_size = target.config.hidden_size
        # behind a sample that lacks its features, the order of those that follow would be another
        self._is_open = self._files.num_samples == len(known)

    @torch.inference_mode()
    def append(self, sample: Sample, states: npt.NDArray[np.generic]) -> None:
        """Add one sample: taps and last hidden state of all its tokens, [T, L*H + H]."""
        if not self._is_open:
            return
        rows = feature_rows(states)
        last = rows[:, -self._hidden_size :].contiguous()
        ids = torch.tensor(sample.token_ids, dtype=torch.int32)
        features = rows[:, : -self._hidden_size].contiguous()
        self._files.append([sample], (ids, features, last, log_norms(self._forward, last)))

    def close(self) -> None:
        """Close the files; the cache is finished by `build_cache`."""
        self._files.close()
