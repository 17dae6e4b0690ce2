"""top_k, top_p and min_p on many rows at once. A row's result does not depend on the other rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspark.decoding.types import SamplingParams

# First guess at how many tokens hold the mass top_p; grows until they do.
_FIRST_NUCLEUS_LEN = 64
_GROWTH = 4
# Rows at a time: their passes over V then stay within a core's cache.
_CHUNK_LEN = 8
# Values per block of the search for the best.
_BLOCK_LEN = 64


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
    result = probs.clone()
    for start in range(0, len(rows), _CHUNK_LEN):
        chunk = rows[start : start + _CHUNK_LEN]
        chosen = torch.tensor(chunk, device=probs.device)
        result[chosen] = _truncate(probs[chosen], [samplings[row] for row in chunk])
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
    *,
    length: int = _FIRST_NUCLEUS_LEN,
) -> tuple[Tensor, Tensor]:
    """How many of the best tokens each row keeps, and the probability of the last of them, [A, 1].

    Looks at the best `length` tokens; rows for which they do not suffice are looked at again.
    """
    num_tokens = probs.shape[1]
    length = min(length, num_tokens)
    best = _best_values(probs, length)
    held = best.cumsum(-1)
    # The mass that top_p is a share of: what top_k has left.
    mass = torch.where(limits < num_tokens, held.gather(1, limits.clamp(max=length) - 1), 1.0)
    counts = torch.minimum((held < top_p * mass).sum(-1, keepdim=True) + 1, limits)
    counts = torch.where(top_p < 1.0, counts, limits)
    # A row is settled by a limit in view, a nucleus in view, or by keeping everything.
    is_limit_in_view = (limits <= length) | (limits == num_tokens)
    is_settled = (is_limit_in_view & (counts <= length)) | (counts == num_tokens)
    smallest = torch.where(counts == num_tokens, 0.0, best.gather(1, counts.clamp(max=length) - 1))
    rows = torch.nonzero(~is_settled.squeeze(1)).squeeze(1)
    if length < num_tokens and len(rows) > 0:
        counts[rows], smallest[rows] = _cuts(probs[rows], limits[rows], top_p[rows], length=_GROWTH * length)
    return counts.clamp(max=num_tokens), smallest


def _best_values(probs: Tensor, length: int) -> Tensor:
    """The `length` greatest values of each row, falling, [A, length].

    They lie in the `length` blocks with the greatest maxima, which are few where `length` is small.
    """
    num_rows, num_tokens = probs.shape
    if num_tokens % _BLOCK_LEN or 4 * length * _BLOCK_LEN > num_tokens:
        return probs.topk(length, dim=-1).values
    blocks = probs.view(num_rows, -1, _BLOCK_LEN)
    places = blocks.amax(-1).topk(length, dim=-1, sorted=False).indices
    inside = blocks.gather(1, places[..., None].expand(-1, -1, _BLOCK_LEN))
    return inside.view(num_rows, -1).topk(length, dim=-1).values


def _kept_best(probs: Tensor, counts: Tensor, smallest: Tensor) -> Tensor:
    """Zero all but the `counts` best of each row, of which `smallest` is the last."""
    kept = probs.masked_fill(probs < smallest, 0.0)
    num_kept = (probs >= smallest).sum(-1, keepdim=True)
    for row in torch.nonzero((num_kept > counts).squeeze(1)).squeeze(1).tolist():
        ties = torch.nonzero(probs[row] == smallest[row]).squeeze(1)
        num_too_many = int(num_kept[row] - counts[row])
        kept[row, ties[len(ties) - num_too_many :]] = 0.0
    return kept
