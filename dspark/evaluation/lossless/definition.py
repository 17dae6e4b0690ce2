"""Adjustments and truncations as their definitions read: a dense row at a time, counted anew. Judges ours."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.types import SamplingParams


def adjusted_by_definition(
    logits: Tensor,  # [V]
    adjustments: LogitAdjustments | None,
    prompt: Sequence[int],
    output: Sequence[int],
) -> Tensor:
    """The logits that choose the token behind prompt and output, [V] of the dtype given."""
    assert logits.ndim == 1, logits.shape
    if adjustments is None:
        return logits
    bias, ending = torch.zeros_like(logits), torch.zeros_like(logits)
    for token_id, value in adjustments.logit_bias:
        bias[token_id] = value
    if len(output) < adjustments.min_tokens:
        ending[list(adjustments.ending_token_ids)] = -torch.inf
    prompt_counts, counts = (
        torch.bincount(torch.tensor(tokens, dtype=torch.int64), minlength=len(logits))
        for tokens in (list(prompt), list(output))
    )
    adjusted = logits + bias
    penalty = adjustments.repetition_penalty
    repeated = torch.where(adjusted > 0, adjusted / penalty, adjusted * penalty)
    adjusted = torch.where(prompt_counts + counts > 0, repeated, adjusted)
    adjusted = adjusted - adjustments.frequency_penalty * counts.to(logits.dtype)
    return adjusted - adjustments.presence_penalty * (counts > 0).to(logits.dtype) + ending


def rows_by_definition(
    logits: Tensor,  # [T, V], row t chooses output token t
    adjustments: LogitAdjustments | None,
    prompt: Sequence[int],
    output: Sequence[int],  # [T]
) -> Tensor:
    """`adjusted_by_definition` of every token of an output, [T, V]."""
    assert len(logits) == len(output), (logits.shape, len(output))
    rows = [
        adjusted_by_definition(row, adjustments, prompt, output[:place]) for place, row in enumerate(logits)
    ]
    return torch.stack(rows) if rows else logits


def kept_by_definition(
    logits: Tensor,  # [V] float64, adjusted
    sampling: SamplingParams,
) -> Tensor:
    """Which tokens temperature, top_k, top_p and min_p leave, [V] bool; equals stay in order of their ids."""
    assert logits.ndim == 1, logits.shape
    if sampling.temperature > 0.0 and (sampling.top_k, sampling.top_p, sampling.min_p) == (0, 1.0, 0.0):
        return logits > -torch.inf
    order = logits.sort(descending=True, stable=True).indices
    if sampling.temperature == 0.0:
        order = order[:1]
    if sampling.top_k:
        order = order[: sampling.top_k]
    probs = torch.softmax(logits[order] / (sampling.temperature or 1.0), dim=-1)
    if sampling.top_p < 1.0:
        order = order[probs.cumsum(-1) - probs < sampling.top_p]
        probs = probs[: len(order)]
    order = order[probs >= sampling.min_p * probs[0]]
    kept = torch.zeros(logits.shape, dtype=torch.bool)
    kept[order] = True
    return kept & (logits > -torch.inf)
