"""The exponential race: sampling with noise that belongs to (seed, position, token id).

The winner, argmin of noise / probability, is distributed as the probabilities. Draft and target run the
same race over their own distributions, so they often agree, and the winner depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.rng import RACE_GROUP_LEN, race_group_minima, race_noise


def race_winners(
    weights: Tensor,  # [A, V] float64, >= 0, not necessarily normalised
    seeds: Sequence[int],  # [A]
    positions: Sequence[int],  # [A]
) -> npt.NDArray[np.int64]:
    """Winner of each row's race, [A].

    Exact, yet it looks at few tokens: the group minimum of the noise over the group maximum of the
    weights bounds every score of a group from below, so groups above the best score are never opened.
    """
    assert weights.ndim == 2, weights.shape
    seed = np.asarray(seeds, dtype=np.uint64)[:, None]
    position = np.asarray(positions, dtype=np.uint64)[:, None]
    groups = _groups(weights)
    num_rows, num_groups, _ = groups.shape
    minima, _ = race_group_minima(seed, position, np.arange(num_groups, dtype=np.uint64)[None, :])
    with np.errstate(divide="ignore"):
        bounds = minima / groups.amax(-1).cpu().numpy()
    rows, first = np.arange(num_rows), bounds.argmin(axis=1)
    scores, winners = _open(groups, seed, position, rows, first)
    # Equal bounds stay in: the first group meets itself again, which keeps the code one path.
    rows, more = np.nonzero(bounds <= scores[:, None])
    scores, winners = _open(groups, seed, position, rows, more)
    order = np.lexsort((winners, scores, rows))
    starts = np.searchsorted(rows[order], np.arange(num_rows))
    return winners[order][starts]


def _groups(weights: Tensor) -> Tensor:
    """[A, V] as [A, V / RACE_GROUP_LEN, RACE_GROUP_LEN], padded with weights that cannot win."""
    missing = -weights.shape[1] % RACE_GROUP_LEN
    padded = torch.nn.functional.pad(weights, (0, missing)) if missing else weights
    return padded.view(padded.shape[0], -1, RACE_GROUP_LEN)


def _open(
    groups: Tensor,  # [A, G, RACE_GROUP_LEN]
    seed: npt.NDArray[np.uint64],  # [A, 1]
    position: npt.NDArray[np.uint64],  # [A, 1]
    rows: npt.NDArray[np.int64],  # [C]
    opened: npt.NDArray[np.int64],  # [C]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Best score and its token id inside each opened group, both [C]."""
    weights = groups[torch.from_numpy(rows), torch.from_numpy(opened)].cpu().numpy()
    token_ids = opened[:, None] * RACE_GROUP_LEN + np.arange(RACE_GROUP_LEN)
    with np.errstate(divide="ignore"):
        scores = race_noise(seed[rows], position[rows], token_ids) / weights
    best = scores.argmin(axis=1)
    taken = np.arange(len(rows))
    return scores[taken, best], token_ids[taken, best]
