"""Tests of "is distributed as", and how often each is wrong about a right program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

# Each statistical check fails a right program once in a million runs.
ERROR_RATE = 1e-6
# Cells expected less often than this are pooled, or the chi-square law would not hold.
_LEAST_EXPECTED = 5.0
_MOST_BINS, _LEAST_PER_BIN = 20, 10


def chi_square_p_value(counts: Sequence[float], expected: Sequence[float]) -> float:
    """Probability of counts at least this far from what is expected, if the expectation is right.

    Args:
        counts: observed, by cell.
        expected: by cell, of the same sum; the rarest are pooled until they reach 5.

    Returns:
        0 where something was seen that cannot happen; 1 where a single cell leaves nothing to test.
    """
    observed, means = np.asarray(counts, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert observed.shape == means.shape, (observed.shape, means.shape)
    if observed[means <= 0.0].any():
        return 0.0
    order = np.argsort(means)
    # The rarest cells, as many as together are expected often enough.
    num_pooled = int(np.searchsorted(np.cumsum(means[order]), _LEAST_EXPECTED)) + 1
    while num_pooled < len(order) and means[order[num_pooled]] < _LEAST_EXPECTED:
        num_pooled += 1
    seen, wanted = (
        np.append(values[order[num_pooled:]], values[order[:num_pooled]].sum())
        for values in (observed, means)
    )
    freedom = len(seen) - 1
    if freedom < 1:
        return 1.0
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def sequences_p_value(
    samples: Iterable[tuple[int, ...]], distribution: Mapping[tuple[int, ...], float]
) -> float:
    """`chi_square_p_value` of sampled sequences against their exact distribution."""
    counts = dict.fromkeys(distribution, 0)
    num_samples = 0
    for sample in samples:
        counts[sample] = counts.get(sample, 0) + 1
        num_samples += 1
    return chi_square_p_value(
        list(counts.values()), [num_samples * distribution.get(cell, 0.0) for cell in counts]
    )


def uniform_p_value(values: npt.NDArray[np.float64]) -> float:
    """`chi_square_p_value` of numbers that should be uniform on [0, 1), in up to twenty bins."""
    num_bins = max(2, min(_MOST_BINS, len(values) // _LEAST_PER_BIN))
    counts = np.bincount(np.minimum((values * num_bins).astype(np.int64), num_bins - 1), minlength=num_bins)
    return chi_square_p_value(counts.tolist(), [len(values) / num_bins] * num_bins)


def place_in_distribution(
    probs: torch.Tensor,  # [T, V] float64
    token_ids: Sequence[int],  # [T]
    rng: np.random.Generator,
) -> npt.NDArray[np.float64]:
    """Where each token lies in its distribution, [T]: uniform and independent if tokens were drawn from it.

    The probability integral transform over tokens by falling probability, with a random place inside the
    token's own mass, which makes it exact for discrete distributions.
    """
    assert probs.ndim == 2, probs.shape
    assert len(token_ids) == len(probs), (len(token_ids), probs.shape)
    chosen = torch.tensor(list(token_ids))[:, None]
    own = probs.gather(1, chosen)
    ids = torch.arange(probs.shape[1])[None]
    # Equally probable tokens stay in order of their ids.
    is_before = (probs > own) | ((probs == own) & (ids < chosen))
    before = torch.where(is_before, probs, 0.0).sum(-1)
    places: npt.NDArray[np.float64] = before.numpy() + rng.random(len(token_ids)) * own.squeeze(1).numpy()
    return places
