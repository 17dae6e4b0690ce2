"""top_k, top_p and min_p on many rows at once. A row's result does not depend on the other rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspark.decoding.types import SamplingParams

# First guess at how many tokens hold the mass top_p; grows until they do.
_FIRST_NUCLEUS_LEN = 64
_GROWTH = 4


def truncated_probs(
    probs: Tensor,  # [A, V] float64
    samplings: Sequence[SamplingParams],  # [A]
) -> Tensor:
    """Apply top_k, then top_p, then min_p to each row and renormalise, [A, V] float64.

    Each truncation sees the distribution that the one before it left. At a cut, equally probable
    tokens stay in order of their ids. Temperature 0 keeps the first of the best tokens only.
    """
    rows = [row for row, sampling in enumerate(samplings) if _is_active(sampling, probs.shape[1])]
    if not rows:
        return probs
    if len(rows) == probs.shape[0]:
        return _truncate(probs, samplings)
    chosen = torch.tensor(rows, device=probs.device)
    result = probs.clone()
    result[chosen] = _truncate(probs[chosen], [samplings[row] for row in rows])
    return result


def _is_active(sampling: SamplingParams, num_tokens: int) -> bool:
    return (
        sampling.temperature == 0.0
        or 0 < sampling.top_k < num_tokens
        or sampling.top_p < 1.0
        or sampling.min_p > 0.0
    )


def _truncate(probs: Tensor, samplings: Sequence[SamplingParams]) -> Tensor:
    num_tokens = probs.shape[1]
    limits = [
        1 if sampling.temperature == 0.0 else min(sampling.top_k or num_tokens, num_tokens)
        for sampling in samplings
    ]
    if min(limits) < num_tokens or any(sampling.top_p < 1.0 for sampling in samplings):
        top_p = torch.tensor([[s.top_p] for s in samplings], dtype=torch.float64, device=probs.device)
        counts, smallest = _cuts(probs, torch.tensor(limits, device=probs.device)[:, None], top_p)
        probs = _kept_best(probs, counts, smallest)
        probs = probs / probs.sum(-1, keepdim=True)
    if any(sampling.min_p > 0.0 for sampling in samplings):
        min_p = torch.tensor([[s.min_p] for s in samplings], dtype=torch.float64, device=probs.device)
        probs = probs.masked_fill(probs < min_p * probs.amax(-1, keepdim=True), 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def _cuts(
    probs: Tensor,  # [A, V]
    limits: Tensor,  # [A, 1], at most so many tokens
    top_p: Tensor,  # [A, 1]
) -> tuple[Tensor, Tensor]:
    """How many of the best tokens each row keeps, and the probability of the last of them, [A, 1]."""
    num_tokens = probs.shape[1]
    is_limited = limits < num_tokens
    longest = int(torch.where(is_limited, limits, 1).max())
    length = min(max(longest, _FIRST_NUCLEUS_LEN), num_tokens)
    while True:
        best = probs.topk(length, dim=-1).values
        held = best.cumsum(-1)
        # The mass that top_p is a share of: what top_k has left.
        mass = torch.where(is_limited, held.gather(1, limits.clamp(max=length) - 1), 1.0)
        counts = torch.minimum((held < top_p * mass).sum(-1, keepdim=True) + 1, limits)
        counts = torch.where(top_p < 1.0, counts, limits)
        is_settled = (counts <= length) | ((top_p >= 1.0) & ~is_limited)
        if length == num_tokens or bool(is_settled.all()):
            break
        length = min(_GROWTH * length, num_tokens)
    counts = counts.clamp(max=num_tokens)
    smallest = best.gather(1, counts.clamp(max=length) - 1)
    return counts, torch.where(counts == num_tokens, 0.0, smallest)


def _kept_best(probs: Tensor, counts: Tensor, smallest: Tensor) -> Tensor:
    """Zero all but the `counts` best of each row, of which `smallest` is the last."""
    kept = probs.masked_fill(probs < smallest, 0.0)
    num_kept = (probs >= smallest).sum(-1, keepdim=True)
    for row in torch.nonzero((num_kept > counts).squeeze(1)).squeeze(1).tolist():
        ties = torch.nonzero(probs[row] == smallest[row]).squeeze(1)
        num_too_many = int(num_kept[row] - counts[row])
        kept[row, ties[len(ties) - num_too_many :]] = 0.0
    return kept
