"""The target's distribution as the request shapes it, and draws from it. Knows nothing of drafts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.truncation import is_truncated, truncated_probs
from dspark.decoding.types import SamplingParams

# Values per block of the two-level searches; sums and maxima of a block are vectorised, scans are not.
_BLOCK_LEN = 256


def shaped_probs(
    logits: Tensor,  # [V] or [T, V]
    sampling: SamplingParams,
) -> Tensor:
    """Apply temperature, then top_k, top_p and min_p, and renormalise.

    Each truncation sees the distribution that the one before it left. At a cut, equally probable
    tokens stay in order of their ids. Temperature 0 gives all mass to the (first) argmax.

    Returns:
        float64 probabilities of the shape of `logits`.
    """
    assert logits.ndim in (1, 2), logits.shape
    rows = logits if logits.ndim == 2 else logits[None]
    return shaped_probs_of_rows(rows, [sampling] * rows.shape[0]).reshape(logits.shape)


def shaped_probs_of_rows(
    logits: Tensor,  # [A, V]
    samplings: Sequence[SamplingParams],  # [A]
) -> Tensor:
    """`shaped_probs` with one set of parameters per row: float64 [A, V]."""
    assert logits.ndim == 2, logits.shape
    assert len(samplings) == logits.shape[0], (len(samplings), logits.shape)
    truncated = [row for row, sampling in enumerate(samplings) if is_truncated(sampling)]
    if not truncated:
        return _softmax(logits, samplings)
    if len(truncated) == len(samplings):
        return truncated_probs(logits, samplings)
    probs = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
    whole = [row for row, sampling in enumerate(samplings) if not is_truncated(sampling)]
    for rows, shape in ((truncated, truncated_probs), (whole, _softmax)):
        places = torch.tensor(rows, device=logits.device)
        probs[places] = shape(logits[places], [samplings[row] for row in rows])
    return probs


def _softmax(logits: Tensor, samplings: Sequence[SamplingParams]) -> Tensor:
    """Distributions over the whole vocabulary."""
    scaled = logits.double()
    temperatures = [sampling.temperature for sampling in samplings]
    if any(temperature != 1.0 for temperature in temperatures):
        divisors = torch.tensor(temperatures, dtype=torch.float64, device=logits.device)
        scaled = scaled / divisors[:, None]
    return torch.softmax(scaled, dim=-1)


def draw(
    weights: Tensor,  # [A, V] float64, >= 0, each row with positive mass
    uniforms: npt.NDArray[np.float64],  # [A]
) -> npt.NDArray[np.int64]:
    """Draw one index per row with probability proportional to its weight, [A].

    Inverse CDF in two levels, block sums first; a token of weight 0 is never drawn.
    """
    missing = -weights.shape[1] % _BLOCK_LEN
    padded = torch.nn.functional.pad(weights, (0, missing)) if missing else weights
    blocks = padded.view(padded.shape[0], -1, _BLOCK_LEN)
    block_sums = blocks.sum(-1).cpu().numpy()
    ends = np.cumsum(block_sums, axis=1)
    goals = uniforms * ends[:, -1]
    chosen = _first_above(ends, block_sums, goals)
    rows = np.arange(len(chosen))
    # Measured from the start of the chosen block; rounding may leave it a hair outside.
    goals = goals - (ends[rows, chosen] - block_sums[rows, chosen])
    inside = blocks[torch.from_numpy(rows), torch.from_numpy(chosen)].cpu().numpy()
    drawn: npt.NDArray[np.int64] = chosen * _BLOCK_LEN + _first_above(
        np.cumsum(inside, axis=1), inside, goals
    )
    return drawn


def argmax_with_margin(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # logits [T, V]
    """Lowest id of the greatest logit, that logit, and the second greatest, each [T].

    Maxima of blocks come first: on a CPU that is several times faster than `argmax` or `topk` over V,
    and the runner-up is found at hardly any further cost.
    """
    num_tokens = logits.shape[1]
    whole = num_tokens - num_tokens % _BLOCK_LEN
    blocks = logits[:, :whole].view(logits.shape[0], whole // _BLOCK_LEN, _BLOCK_LEN)
    maxima = blocks.amax(-1)
    if whole < num_tokens:
        maxima = torch.cat([maxima, logits[:, whole:].amax(-1, keepdim=True)], dim=1)
    block = maxima.argmax(-1)
    offsets = block[:, None] * _BLOCK_LEN + torch.arange(_BLOCK_LEN, device=logits.device)
    inside = logits.gather(1, offsets.clamp(max=num_tokens - 1))
    inside.masked_fill_(offsets >= num_tokens, -torch.inf)
    place = inside.argmax(-1)
    best = inside.gather(1, place[:, None]).squeeze(1)
    inside.scatter_(1, place[:, None], -torch.inf)
    maxima = maxima.scatter(1, block[:, None], -torch.inf)
    second = torch.maximum(inside.amax(-1), maxima.amax(-1))
    return block * _BLOCK_LEN + place, best, second


def _first_above(
    ends: npt.NDArray[np.float64],  # [A, N], running sums of weights
    weights: npt.NDArray[np.float64],  # [A, N]
    goals: npt.NDArray[np.float64],  # [A]
) -> npt.NDArray[np.int64]:
    """First index whose running sum exceeds the goal; where rounding leaves none, the last with weight."""
    chosen: npt.NDArray[np.int64] = (ends <= goals[:, None]).sum(axis=1)
    for row in np.nonzero(chosen >= ends.shape[1])[0]:
        chosen[row] = np.nonzero(weights[row])[0][-1]
    return chosen
