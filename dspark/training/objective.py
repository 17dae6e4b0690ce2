"""One training objective: a batch of blocks through the drafter to a loss and its metrics."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.models.drafter import DSparkDrafter
from dspark.training.attention import BlockAttention
from dspark.training.blocks import BlockBatch
from dspark.training.fused_loss import FusedLoss
from dspark.training.losses import LossWeights, VocabularyLoss, confidence_loss


@dataclass(frozen=True, slots=True)
class BlockScores:
    """Per slot, [B*A, G]: what acceptance would be, and whether the slot counts.

    Attributes:
        overlap: 1 - tv, the chance that rejection sampling accepts.
        agree: 1 where the argmaxes coincide, which greedy decoding accepts.
        confidence_logits: raw output of the confidence head; without one, how sure the draft distribution is
            of its best token, which is NaN while gradients are wanted.
        is_valid: whether the label exists.
    """

    overlap: Tensor
    agree: Tensor
    confidence_logits: Tensor
    is_valid: Tensor


def position_weights(is_valid: Tensor, decay: float) -> Tensor:
    """w_k = exp(-k / decay) on valid slots, summing to one: [N, G] to [N, G] (paper §3.3)."""
    gamma = is_valid.shape[-1]
    weights = torch.exp(-torch.arange(gamma) / decay) * is_valid
    return weights / weights.sum().clamp_min(1e-6)


def run_blocks(
    drafter: DSparkDrafter,
    batch: BlockBatch,
    loss: LossWeights,
    *,
    decay: float,
    fused: FusedLoss | None = None,
) -> tuple[Tensor, BlockScores]:
    """Forward pass of training: the weighted loss, and the scores of every slot.

    Computes in the dtype of the drafter's frozen rows, with parameters in float32.
    """
    dtype = drafter.lm_head.dtype
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        hidden = _block_states(drafter, batch, dtype)
        embedded, mixed, markov_w2 = _sequential(drafter, batch, hidden)
        is_valid = batch.is_valid.reshape(-1, drafter.config.gamma)
        weights = position_weights(is_valid, decay).reshape(-1)
        value, overlap, agree, peak = VocabularyLoss.apply(  # type: ignore[no-untyped-call]
            hidden, mixed, markov_w2, drafter.lm_head, batch.teacher, weights, loss, fused
        )
        confidence: Tensor = peak
        if drafter.confidence_head is not None:
            confidence = drafter.confidence_head(hidden, embedded)
            value = value + loss.confidence * confidence_loss(confidence, overlap, weights)
    shape = is_valid.shape
    scores = BlockScores(overlap.view(shape), agree.view(shape), confidence.detach().view(shape), is_valid)
    return value, scores


def _block_states(drafter: DSparkDrafter, batch: BlockBatch, dtype: torch.dtype) -> Tensor:
    """Hidden states of all slots, [N, H]."""
    gamma = drafter.config.gamma
    num_samples, width, _ = batch.features.shape
    backbone = drafter.backbone
    context_positions = torch.arange(width).repeat(num_samples)
    context_states = backbone.fuse(batch.features.flatten(0, 1).to(dtype))
    contexts = backbone.context_keys_values(context_states, context_positions)
    embeddings = drafter.block_embeddings(batch.tokens[:, :, 0].reshape(-1))
    positions = (batch.anchors[:, :, None] + torch.arange(gamma)).reshape(-1)
    attend = BlockAttention(contexts, batch.anchors, gamma, dtype)
    hidden: Tensor = backbone(embeddings.flatten(0, 1), positions, attend)
    return hidden


def _sequential(
    drafter: DSparkDrafter, batch: BlockBatch, hidden: Tensor
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Embeddings e of the tokens before the slots and what W2 multiplies, [N, rank] each, and W2 [Vd, rank].

    Teacher forcing: the token before a slot is the true one. Without a Markov head, rank is 0.
    """
    markov = drafter.markov_head
    if markov is None:
        return None, hidden.new_empty((len(hidden), 0)), drafter.lm_head.new_empty((len(drafter.lm_head), 0))
    gamma = drafter.config.gamma
    embedded = markov.embed(batch.tokens[:, :, :-1].reshape(-1, gamma))
    mixed = markov.over_blocks(embedded, hidden.view(-1, gamma, hidden.shape[-1]))
    return embedded.flatten(0, 1), mixed.flatten(0, 1), markov.markov_w2.weight


def mean_committed(chance: Tensor, is_valid: Tensor) -> float:
    """1 + mean over blocks of the sum of running products of `chance` [N, G] on valid slots."""
    survival = torch.cumprod(chance * is_valid, dim=-1)
    return 1 + float(survival.sum(-1).mean())
