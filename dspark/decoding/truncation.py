"""top_k, top_p and min_p: distributions over few tokens, found without float64 passes over the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.decoding.types import SamplingParams

# First guess at how many tokens are kept; grows for the rows that keep more.
_FIRST_LEN = 64
_GROWTH = 4
# Values per block of the search for the best.
_BLOCK_LEN = 64


@dataclass(frozen=True, slots=True)
class _Cuts:
    """What each row keeps, every tensor [A, 1] float64 or int64."""

    temperature: Tensor
    # at most so many tokens; V: off
    limit: Tensor
    # share of the mass that the limit leaves; 1: off
    top_p: Tensor
    # share of the best probability; 0: off
    min_p: Tensor

    @classmethod
    def of(cls, samplings: Sequence[SamplingParams], num_tokens: int, device: torch.device) -> _Cuts:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

        limits = [1 if s.temperature == 0.0 else min(s.top_k or num_tokens, num_tokens) for s in samplings]
        return cls(
            temperature=column([s.temperature or 1.0 for s in samplings]),
            limit=torch.tensor(limits, device=device)[:, None],
            top_p=column([s.top_p for s in samplings]),
            min_p=column([s.min_p for s in samplings]),
        )

    def take(self, rows: Tensor) -> _Cuts:
        """Those of some rows."""
        return _Cuts(self.temperature[rows], self.limit[rows], self.top_p[rows], self.min_p[rows])


def is_truncated(sampling: SamplingParams) -> bool:
    """Whether a request keeps only part of the vocabulary."""
    return sampling.temperature == 0.0 or sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0


def truncated_probs(
    logits: Tensor,  # [A, V]
    samplings: Sequence[SamplingParams],  # [A]
) -> Tensor:
    """Apply temperature, then top_k, top_p and min_p to each row and renormalise, [A, V] float64.

    Each truncation sees the distribution that the one before it left. At a cut, equally probable
    tokens stay in order of their ids. Temperature 0 keeps the first of the best tokens only.
    """
    rows = logits if logits.dtype == torch.float64 else logits.float()
    probs = torch.zeros(rows.shape, dtype=torch.float64, device=rows.device)
    _fill(probs, rows, _Cuts.of(samplings, rows.shape[1], rows.device), _FIRST_LEN)
    return probs


def _fill(probs: Tensor, logits: Tensor, cuts: _Cuts, length: int) -> None:
    """Write the kept probabilities of each row, looking at its best `length` tokens, then at more."""
    num_tokens = logits.shape[1]
    length = min(length, num_tokens)
    values, token_ids = _best(logits, length)
    weights = ((values.double() - values[:, :1].double()) / cuts.temperature).exp()
    counts = _num_kept(logits, weights, cuts)
    is_settled = (counts <= length).squeeze(1)
    counts = counts.clamp(max=length)
    weights = weights * (torch.arange(length, device=logits.device) < counts)
    weights /= weights.sum(-1, keepdim=True)
    _order_ties(logits, values, token_ids, counts)
    # Added, not written: a place may be named again with weight 0.
    probs.scatter_add_(1, token_ids, weights * is_settled[:, None])
    rows = torch.nonzero(~is_settled).squeeze(1)
    if len(rows) > 0:
        wider = torch.zeros((len(rows), num_tokens), dtype=probs.dtype, device=probs.device)
        _fill(wider, logits[rows], cuts.take(rows), _GROWTH * length)
        probs[rows] = wider


def _num_kept(
    logits: Tensor,  # [A, V]
    weights: Tensor,  # [A, L] of the best tokens, relative to the best
    cuts: _Cuts,
) -> Tensor:
    """How many of the best tokens each row keeps, [A, 1]; more than L where L tokens do not tell."""
    num_tokens, length = logits.shape[1], weights.shape[1]
    beyond = num_tokens if length == num_tokens else length + 1
    held = weights.cumsum(-1)
    limit = cuts.limit.clamp(max=beyond)
    # The mass that top_p is a share of: what top_k has left, or all.
    mass = held.gather(1, limit.clamp(max=length) - 1)
    if bool(((cuts.limit == num_tokens) & (cuts.top_p < 1.0)).any()):
        scaled = logits / cuts.temperature.to(logits.dtype)
        whole = (torch.logsumexp(scaled, -1, keepdim=True) - scaled.amax(-1, keepdim=True)).double().exp()
        mass = torch.where(cuts.limit == num_tokens, whole, mass)
    in_nucleus = ((held < cuts.top_p * mass).sum(-1, keepdim=True) + 1).clamp(max=beyond)
    in_nucleus = torch.where(cuts.top_p < 1.0, in_nucleus, beyond)
    likely = (weights >= cuts.min_p).sum(-1, keepdim=True)
    likely = torch.where(likely == length, beyond, likely)
    # A limit out of view leaves the nucleus unknown.
    is_unknown = (cuts.limit < num_tokens) & (cuts.limit > length) & (cuts.top_p < 1.0)
    counts = torch.minimum(limit, torch.minimum(in_nucleus, likely))
    return torch.where(is_unknown, beyond, counts)


def _best(logits: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The `length` greatest values of each row, falling, and their places, both [A, length].

    They lie in the `length` blocks with the greatest maxima, which are few where `length` is small.
    """
    num_rows, num_tokens = logits.shape
    if num_tokens % _BLOCK_LEN or 4 * length * _BLOCK_LEN > num_tokens:
        best = logits.topk(length, dim=-1)
        return best.values, best.indices
    blocks = logits.reshape(num_rows, -1, _BLOCK_LEN)
    chosen = blocks.amax(-1).topk(length, dim=-1, sorted=False).indices
    inside = blocks.gather(1, chosen[..., None].expand(-1, -1, _BLOCK_LEN)).view(num_rows, -1)
    values, places = inside.topk(length, dim=-1)
    return values, chosen.gather(1, places // _BLOCK_LEN) * _BLOCK_LEN + places % _BLOCK_LEN


def _order_ties(logits: Tensor, values: Tensor, token_ids: Tensor, counts: Tensor) -> None:
    """Where the cut falls among equal values, keep the lowest of their ids; changes `token_ids`."""
    length = values.shape[1]
    last = values.gather(1, counts - 1)
    following = values.gather(1, counts.clamp(max=length - 1))
    # A cut at the end of the view may have equals beyond it.
    is_split = (following == last) & (counts < logits.shape[1])
    for row in torch.nonzero(is_split.squeeze(1)).squeeze(1).tolist():
        count, smallest = int(counts[row]), last[row]
        num_above = int((values[row, :count] > smallest).sum())
        ties = torch.nonzero(logits[row] == smallest).squeeze(1)[: count - num_above]
        token_ids[row, num_above:count] = ties
