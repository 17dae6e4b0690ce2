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
    weights bounds every score of a group from below, so groups above a score already seen stay closed.
    """
    assert weights.ndim == 2, weights.shape
    seed = np.asarray(seeds, dtype=np.uint64)[:, None]
    position = np.asarray(positions, dtype=np.uint64)[:, None]
    groups = _groups(weights)
    rows = np.arange(groups.shape[0])
    group_ids = np.arange(groups.shape[1], dtype=np.uint64)[None, :]
    minima, holders = race_group_minima(seed, position, group_ids)
    heaviest = groups.amax(-1).cpu().numpy()
    held = groups.gather(2, torch.from_numpy(holders.astype(np.int64))[..., None].to(groups.device))
    with np.errstate(divide="ignore"):
        bounds = minima / heaviest
        holder_scores = minima / held.squeeze(2).cpu().numpy()
    # Two cheap guesses at the best score: the holders of the minima, and the group of the likeliest token.
    scores, _ = _open(groups, seed, position, rows, heaviest.argmax(axis=1))
    limits = np.minimum(scores, holder_scores.min(axis=1))
    rows, opened = np.nonzero(bounds <= limits[:, None])
    scores, winners = _open(groups, seed, position, rows, opened)
    order = np.lexsort((winners, scores, rows))
    starts = np.searchsorted(rows[order], np.arange(groups.shape[0]))
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
