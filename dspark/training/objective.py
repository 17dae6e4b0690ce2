"""One training objective: a batch of blocks through the drafter to a loss and its metrics."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dspark.models.backbone import Backbone
from dspark.models.chain import ChainDrafter
from dspark.models.drafter import Drafter, DSparkDrafter
from dspark.training.attention import BlockAttention
from dspark.training.blocks import BlockBatch
from dspark.training.chain import chain_states
from dspark.training.fused_loss import FusedLoss
from dspark.training.losses import LossWeights, VocabularyLoss, confidence_loss


@dataclass(frozen=True, slots=True)
class BlockScores:
    """Per slot, [R, G]: what acceptance would be, and whether the slot counts.

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
    """w_k = exp(-k / decay) on valid slots, 0 elsewhere: [N, G] to [N, G] (paper §3.3)."""
    gamma = is_valid.shape[-1]
    return torch.exp(-torch.arange(gamma) / decay) * is_valid


def run_blocks(
    drafter: Drafter,
    batch: BlockBatch,
    loss: LossWeights,
    *,
    decay: float,
    fused: FusedLoss | None = None,
    total_weight: float | None = None,
) -> tuple[Tensor, BlockScores]:
    """Forward pass of training: the weighted loss, and the scores of every slot.

    Computes in the dtype of the drafter's frozen rows, with parameters in float32. Terms are divided by
    `total_weight`, the position weights of everything one step learns from; None: of this batch alone.
    """
    dtype = drafter.lm_head.dtype
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        hidden = _states(drafter, batch, dtype)
        embedded, mixed, markov_w2 = _sequential(drafter, batch, hidden)
        weights = position_weights(batch.is_valid, decay).flatten()
        weights = weights / (float(weights.sum()) if total_weight is None else total_weight)
        value, overlap, agree, peak = VocabularyLoss.apply(  # type: ignore[no-untyped-call]
            hidden, mixed, markov_w2, drafter.lm_head, batch.teacher, weights, loss, fused
        )
        confidence: Tensor = peak
        if drafter.confidence_head is not None:
            confidence = drafter.confidence_head(hidden, embedded)
            value = value + loss.confidence * confidence_loss(confidence, overlap, weights)
    shape = batch.is_valid.shape
    scores = BlockScores(
        overlap.view(shape), agree.view(shape), confidence.detach().view(shape), batch.is_valid
    )
    return value, scores


class Objective(nn.Module):
    """`run_blocks` as a module, so that torch can average its gradients over processes."""

    def __init__(self, drafter: Drafter, loss: LossWeights, decay: float, fused: FusedLoss | None) -> None:
        super().__init__()
        self.drafter = drafter
        self._loss, self._decay, self._fused = loss, decay, fused

    def forward(self, batch: BlockBatch, total_weight: float | None) -> tuple[Tensor, BlockScores]:
        """See `run_blocks`."""
        return run_blocks(
            self.drafter,
            batch,
            self._loss,
            decay=self._decay,
            fused=self._fused,
            total_weight=total_weight,
        )


@dataclass(frozen=True, slots=True)
class _LayerContexts:
    """Makes keys and values of the context while their layer runs, when its weights are whole."""

    backbone: Backbone
    fused: Tensor
    rotary: tuple[Tensor, Tensor]

    def __getitem__(self, layer: int, /) -> tuple[Tensor, Tensor]:
        return self.backbone.layer_context(layer, self.fused, self.rotary)


def _states(drafter: Drafter, batch: BlockBatch, dtype: torch.dtype) -> Tensor:
    """Hidden states of all slots, [N, H]."""
    if isinstance(drafter, ChainDrafter):
        return chain_states(drafter, batch, dtype)
    assert isinstance(drafter, DSparkDrafter), type(drafter)
    return _block_states(drafter, batch, dtype)


def _block_states(drafter: DSparkDrafter, batch: BlockBatch, dtype: torch.dtype) -> Tensor:
    """Those of a parallel pass."""
    # while blocks grow they are shorter than the drafter's
    gamma, backbone = batch.is_valid.shape[-1], drafter.backbone
    starts = batch.token_starts
    positions = torch.cat([torch.arange(stop - start) for start, stop in itertools.pairwise(starts)])
    fused = backbone.fuse(batch.features.to(dtype))
    contexts = _LayerContexts(backbone, fused, backbone.rotary(positions, fused.dtype))
    embeddings = drafter.block_embeddings(batch.tokens[:, 0])[:, :gamma]
    slots = (batch.anchors[:, None] + torch.arange(gamma)).flatten()
    attend = BlockAttention(contexts, starts, batch.block_starts, batch.anchors, gamma, dtype)
    hidden: Tensor = backbone(embeddings.flatten(0, 1), slots, attend)
    return hidden


def _sequential(drafter: Drafter, batch: BlockBatch, hidden: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
    """Embeddings e of the tokens before the slots and what W2 multiplies, [N, rank] each, and W2 [Vd, rank].

    Teacher forcing: the token before a slot is the true one. Without a Markov head, rank is 0.
    """
    markov = drafter.markov_head
    if markov is None:
        return None, hidden.new_empty((len(hidden), 0)), drafter.lm_head.new_empty((len(drafter.lm_head), 0))
    gamma = batch.is_valid.shape[-1]
    embedded = markov.embed(batch.tokens[:, :-1])
    mixed = markov.over_blocks(embedded, hidden.view(-1, gamma, hidden.shape[-1]))
    return embedded.flatten(0, 1), mixed.flatten(0, 1), markov.markov_w2.weight


def mean_committed(chance: Tensor, is_valid: Tensor) -> float:
    """1 + mean over blocks of the sum of running products of `chance` [N, G] on valid slots."""
    survival = torch.cumprod(chance * is_valid, dim=-1)
    return 1 + float(survival.sum(-1).mean())
