"""The vocabulary losses of a drafter, chunked so that memory does not grow with positions x vocabulary.

Per position, with the draft distribution d over the draft vocabulary and the target t over the whole one:
    hard:  -log d(label)                        (paper eq. 9)
    soft:  -sum_v t(v) log d(v)                 cross entropy against the target's distribution
    tv:    1/2 * ||d - t||_1                     (paper eq. 10 without its factor 2)
Target mass outside the draft vocabulary is part of tv: no draft can win it. Gradients have closed forms, so
they are computed in the forward pass and no logits are kept:
    d soft / d logits = (sum_v t(v)) d - t
    d tv   / d logits = d * (s - sum_v s d),  s = 1/2 sign(d - t)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dspark.models.heads import peak_logits
from dspark.training.fused_loss import FusedLoss

# Rows whose logits are alive at once: small enough to stay in the processor's cache.
CHUNK = 128


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Weights of the terms; the paper's are hard 0.1, tv 1.8 (0.9 of the L1 norm), confidence 1."""

    hard: float = 0.0
    soft: float = 1.0
    tv: float = 1.0
    confidence: float = 0.5


@dataclass(frozen=True, slots=True)
class Teacher:
    """What the target says about each position.

    Attributes:
        last: [N, H] final hidden state, in the dtype of the output rows or in bfloat16.
        log_norm: [N] log-normaliser over the whole vocabulary.
        labels: [N] draft id of the token that followed, -1 where it is outside the draft vocabulary.
    """

    last: Tensor
    log_norm: Tensor
    labels: Tensor


def _chunk_gradient(
    logits: Tensor, target_probs: Tensor, labels: Tensor, loss: LossWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss [n], overlap [n] and d loss / d logits [n, Vd] of one chunk."""
    target_mass = target_probs.sum(-1)
    log_draft = functional.log_softmax(logits, -1)
    soft = -(target_probs * log_draft).sum(-1)
    draft = log_draft.exp()
    difference = draft - target_probs
    tv = 0.5 * (difference.abs().sum(-1) + 1 - target_mass)
    value = loss.soft * soft + loss.tv * tv
    gradient = loss.soft * (target_mass[:, None] * draft - target_probs)
    if loss.tv:
        sign = difference.sign_().mul_(0.5)
        gradient += loss.tv * draft * (sign - (sign * draft).sum(-1, keepdim=True))
    if loss.hard:
        known = labels >= 0
        rows = torch.nonzero(known).squeeze(-1)
        value[rows] -= loss.hard * log_draft[rows, labels[rows]]
        gradient += loss.hard * draft * known[:, None]
        gradient[rows, labels[rows]] -= loss.hard
    return value, 1 - tv, gradient


def _eager_chunk(
    logits: Tensor, part: Teacher, weights: Tensor, loss: LossWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss [n], overlap [n] and weighted gradient [n, Vd] of one chunk; `part.last` holds target logits."""
    target_probs = (part.last.float() - part.log_norm[:, None]).exp_()
    value, overlap, gradient = _chunk_gradient(logits.float(), target_probs, part.labels, loss)
    return value, overlap, (gradient * weights[:, None]).to(logits.dtype)


def _fused_chunk(
    fused: FusedLoss, logits: Tensor, part: Teacher, weights: Tensor, loss: LossWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """The same by the compiled kernel, which turns `logits` into the gradient."""
    value, overlap = fused.run(
        logits, part.last, (part.log_norm, part.labels), weights, (loss.hard, loss.soft, loss.tv)
    )
    return value, overlap, logits


class VocabularyLoss(torch.autograd.Function):
    """Weighted sum of the vocabulary losses; returns (loss, overlap [N], agreement [N], peak [N]).

    overlap is 1 - tv, the probability that rejection sampling accepts (paper eq. 8); agreement says whether
    both argmaxes coincide, which is what greedy decoding accepts; peak is the logit of the drafter's
    probability of its best token. The last two are NaN while gradients are wanted.
    """

    @staticmethod
    def forward(  # noqa: D102 - torch's own protocol
        ctx: Any,
        hidden: Tensor,  # [N, H]
        mixed: Tensor,  # [N, rank], what W2 multiplies
        markov_w2: Tensor,  # [Vd, rank]
        lm_head: Tensor,  # [Vd, H] bfloat16 or float32, frozen; its dtype is that of all products
        teacher: Teacher,
        weights: Tensor,  # [N]
        loss: LossWeights,
        fused: FusedLoss | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # one product for base logits and Markov bias: [h; u] @ [head | W2]
        states = torch.cat((hidden.to(lm_head.dtype), mixed.to(lm_head.dtype)), dim=-1)
        output = torch.cat((lm_head, markov_w2.to(lm_head.dtype)), dim=-1)
        gradients = torch.empty_like(states)
        grad_w2 = torch.zeros(markov_w2.shape, dtype=torch.float32)
        overlap, agree, peak = (torch.full((len(states),), torch.nan) for _ in range(3))
        total = torch.zeros(())
        for start in range(0, len(states), CHUNK):
            rows = slice(start, start + CHUNK)
            logits = states[rows] @ output.t()
            target_logits = teacher.last[rows].to(lm_head.dtype) @ lm_head.t()
            if not ctx.needs_input_grad[0]:  # held-out metrics: they cost too much for every step
                agree[rows] = (logits.argmax(-1) == target_logits.argmax(-1)).float()
                peak[rows] = peak_logits(logits)
            part = Teacher(target_logits, teacher.log_norm[rows], teacher.labels[rows])
            run = _eager_chunk if fused is None else partial(_fused_chunk, fused)
            value, overlap[rows], gradient = run(logits, part, weights[rows], loss)
            total += (value * weights[rows]).sum()
            gradients[rows] = gradient @ output
            grad_w2 += gradient.t() @ states[rows, hidden.shape[-1] :]
        ctx.save_for_backward(gradients, grad_w2)
        ctx.dtypes, ctx.hidden_size = (hidden.dtype, mixed.dtype), hidden.shape[-1]
        ctx.mark_non_differentiable(overlap, agree, peak)
        return total, overlap, agree, peak

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        states, grad_w2 = ctx.saved_tensors
        scale, size = gradients[0], ctx.hidden_size
        grad_h, grad_u = (
            part.to(dtype) * scale
            for part, dtype in zip((states[:, :size], states[:, size:]), ctx.dtypes, strict=True)
        )
        return (grad_h, grad_u, grad_w2 * scale, *[None] * 5)


def confidence_loss(confidence_logits: Tensor, overlap: Tensor, weights: Tensor) -> Tensor:
    """BCE(c_k, c*_k) with c*_k = 1 - tv, detached (paper eq. 11): [N] each to a scalar."""
    terms = functional.binary_cross_entropy_with_logits(
        confidence_logits, overlap.detach().clamp(0, 1), reduction="none"
    )
    return (terms * weights).sum()
