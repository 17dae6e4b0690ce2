"""Anchors and blocks: which positions of which samples one training step drafts from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.training.features import FeatureCache
from dspark.training.losses import Teacher


@dataclass(frozen=True, slots=True)
class BlockBatch:
    """Blocks of one step: B samples, A anchors each, G slots per block.

    Attributes:
        features: [B, T, L*H] bfloat16, zero where padded.
        anchors: [B, A] positions of the anchor tokens.
        tokens: [B, A, G+1] anchor token and the G tokens that followed (clamped at the end).
        is_valid: [B, A, G] whether the slot's label exists and is the target's own.
        teacher: for the B*A*G slots, flattened.
    """

    features: Tensor
    anchors: Tensor
    tokens: Tensor
    is_valid: Tensor
    teacher: Teacher


class BlockSampler:
    """Draws batches of samples of similar length and, in each, anchors without replacement.

    A candidate anchor has a label that is the target's own: positions prompt_len - 1 .. length - 2
    (DeepSpec section 4.1, and also the last prompt token, which serving drafts from).
    """

    def __init__(
        self,
        cache: FeatureCache,
        samples: npt.NDArray[np.int64],
        t2d: Tensor,
        *,
        gamma: int,
        batch_samples: int,
        anchors_per_sample: int,
        seed: int,
    ) -> None:
        self._cache, self._t2d, self._gamma = cache, t2d, gamma
        self._batch_samples, self._anchors_per_sample = batch_samples, anchors_per_sample
        self._samples = samples
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def __iter__(self) -> Iterator[BlockBatch]:
        """Endless batches, reshuffled each epoch."""
        while True:
            for members in self.epoch():
                yield self.batch(members)

    def epoch(self) -> list[npt.NDArray[np.int64]]:
        """Members of every batch of one epoch, in random order, each of similar lengths."""
        lengths = self._cache.index[self._samples, 1] + self._rng.uniform(0, 24, len(self._samples))
        ordered = self._samples[np.argsort(lengths)]
        size = self._batch_samples
        batches = [ordered[start : start + size] for start in range(0, len(ordered) - size + 1, size)]
        self._rng.shuffle(batches)
        return batches

    def _anchors(self, length: int, prompt_len: int) -> npt.NDArray[np.int64]:
        candidates = np.arange(prompt_len - 1, length - 1)
        wanted = self._anchors_per_sample
        replace = len(candidates) < wanted
        return np.sort(self._rng.choice(candidates, wanted, replace=replace))

    def batch(self, members: npt.NDArray[np.int64]) -> BlockBatch:
        """Assemble one batch."""
        rows = self._cache.index[members]
        width, gamma = int(rows[:, 1].max()), self._gamma
        anchors = np.stack([self._anchors(int(length), int(prompt)) for _, length, prompt in rows])
        features = torch.zeros(len(rows), width, self._feature_size(), dtype=torch.bfloat16)
        for number, (offset, length, _) in enumerate(rows):
            features[number, :length] = self._cache.features(offset, offset + length)
        # [B, A, G+1]: positions of the anchor and of the labels
        positions = anchors[:, :, None] + np.arange(gamma + 1)
        last = rows[:, 1, None, None] - 1
        is_valid = torch.from_numpy(positions[:, :, 1:] <= last)
        absolute = np.minimum(positions, last) + rows[:, 0, None, None]
        tokens = torch.from_numpy(self._cache.tokens(absolute).astype(np.int64))
        # the token at position p is predicted by the target's state at p - 1
        sources = absolute[:, :, :-1].reshape(-1)
        teacher = Teacher(
            last=self._cache.last(sources),
            log_norm=self._cache.log_norm(sources),
            labels=self._t2d[tokens[:, :, 1:].reshape(-1)],
        )
        return BlockBatch(features, torch.from_numpy(anchors), tokens, is_valid, teacher)

    def _feature_size(self) -> int:
        return len(self._cache.target_layer_ids) * self._cache.hidden_size
