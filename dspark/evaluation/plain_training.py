"""Training of the same drafter as one would write it first: the baseline of `dspark bench training`.

Samples are padded to the longest, attention takes a mask of all slots by all keys, whole logits are kept for
autograd, and the target's distribution comes from its full vocabulary at every position of every sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from dspark.models.drafter import DSparkDrafter
from dspark.training.blocks import BlockBatch
from dspark.training.features import FeatureCache
from dspark.training.losses import LossWeights, confidence_loss


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """The blocks of a `BlockBatch` as S samples of A blocks each, padded to T tokens.

    Attributes:
        features: [S, T, L*H].
        last: [S, T, H] final hidden states of the target at every position.
        anchors: [S, A].
        tokens: [S, A, G+1].
        is_valid: [S, A, G].
    """

    features: Tensor
    last: Tensor
    anchors: Tensor
    tokens: Tensor
    is_valid: Tensor


def pad(batch: BlockBatch, cache: FeatureCache, members: npt.NDArray[np.int64]) -> PaddedBatch:
    """The same samples and blocks, padded; every sample must have as many blocks as the others."""
    spans = [(int(start), int(start + length)) for start, length, _ in cache.index[members]]
    count = len(members)
    return PaddedBatch(
        features=pad_sequence([cache.features(*span) for span in spans], batch_first=True),
        last=pad_sequence([cache.last(np.arange(*span)) for span in spans], batch_first=True),
        anchors=batch.anchors.view(count, -1),
        tokens=batch.tokens.view(count, -1, batch.tokens.shape[-1]),
        is_valid=batch.is_valid.view(count, -1, batch.is_valid.shape[-1]),
    )


class PlainAttention:
    """Attention over [context, all blocks] with one boolean mask of slots by keys, per sample."""

    def __init__(
        self, contexts: list[tuple[Tensor, Tensor]], batch: PaddedBatch, gamma: int, dtype: torch.dtype
    ) -> None:
        self._contexts, self._dtype = contexts, dtype
        self._count, num_anchors = batch.anchors.shape
        width = batch.features.shape[1]
        # [S, 1, A*G, T + A*G]
        seen = torch.arange(width) < batch.anchors.repeat_interleave(gamma, 1)[:, :, None]
        block = torch.arange(num_anchors).repeat_interleave(gamma)
        own = (block[:, None] == block).expand(self._count, -1, -1)
        self._mask = torch.cat((seen, own), dim=-1)[:, None]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `Attend`."""
        queries, *own = (self._by_head(part) for part in (query, key, value))
        context = (self._by_head(part) for part in self._contexts[layer])
        keys, values = (torch.cat(parts, dim=2) for parts in zip(context, own, strict=True))
        out = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=self._mask, enable_gqa=True
        )
        return out.transpose(1, 2).reshape(query.shape)

    def _by_head(self, rows: Tensor) -> Tensor:
        """[S*X, heads, D] to [S, heads, X, D]."""
        return rows.to(self._dtype).view(self._count, -1, *rows.shape[1:]).transpose(1, 2)


class PlainObjective:
    """The loss of a batch, straight from its definition."""

    def __init__(self, drafter: DSparkDrafter, head: Tensor, loss: LossWeights, decay: float) -> None:
        """Take a drafter and the target's whole output projection [V, H]."""
        assert drafter.markov_head is not None, "the baseline knows Markov heads only"
        self._drafter, self._head, self._loss, self._decay = drafter, head, loss, decay
        self._markov = drafter.markov_head

    def __call__(self, batch: PaddedBatch) -> Tensor:
        """The weighted loss."""
        drafter = self._drafter
        dtype = drafter.lm_head.dtype
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            hidden, embedded = self._states(batch, dtype)
            logits = hidden.to(dtype) @ drafter.lm_head.t() + self._markov.bias(embedded)
            confidence = drafter.confidence_head
            certainty = None if confidence is None else confidence(hidden, embedded)
        target = self._target_probs(batch, dtype)
        log_draft = logits.float().log_softmax(-1)
        outside = 1 - target.sum(-1)
        tv = 0.5 * ((log_draft.exp() - target).abs().sum(-1) + outside)
        terms = self._loss.soft * -(target * log_draft).sum(-1) + self._loss.tv * tv
        decays = torch.exp(-torch.arange(drafter.config.gamma) / self._decay)
        weights = (batch.is_valid * decays).flatten()
        weights = weights / weights.sum()
        value = (terms * weights).sum()
        if certainty is not None:
            value = value + self._loss.confidence * confidence_loss(certainty, 1 - tv, weights)
        return value

    def _states(self, batch: PaddedBatch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        drafter, gamma = self._drafter, self._drafter.config.gamma
        count, width, _ = batch.features.shape
        fused = drafter.backbone.fuse(batch.features.flatten(0, 1).to(dtype))
        contexts = drafter.backbone.context_keys_values(fused, torch.arange(width).repeat(count))
        embeddings = drafter.block_embeddings(batch.tokens[:, :, 0].flatten())
        slots = (batch.anchors[:, :, None] + torch.arange(gamma)).flatten()
        attend = PlainAttention(contexts, batch, gamma, dtype)
        hidden = drafter.backbone(embeddings.flatten(0, 1), slots, attend)
        return hidden, self._markov.embed(batch.tokens[:, :, :-1].flatten())

    @torch.no_grad()
    def _target_probs(self, batch: PaddedBatch, dtype: torch.dtype) -> Tensor:
        """What the target thinks of the draft vocabulary in each slot: [S*A*G, Vd]."""
        width, gamma = batch.last.shape[1], self._drafter.config.gamma
        probs = (batch.last.to(dtype) @ self._head.t()).float().softmax(-1)  # [S, T, V]
        positions = (batch.anchors[:, :, None] + torch.arange(gamma)).clamp_max(width - 1).flatten(1)
        samples = torch.arange(len(positions))[:, None]
        return probs[samples, positions].flatten(0, 1)[:, self._drafter.d2t]
