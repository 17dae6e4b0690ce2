"""Counter-based randomness: Philox4x32-10 keyed by the request's seed. Owns no state, knows no tensors.

A draw is a function of (seed, position, purpose, index), so nothing must be restored after a crash and
nothing depends on which batch slot a request sits in.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

# Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11), table of constants.
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_MASK, _WORD_BITS = np.uint64(0xFFFFFFFF), np.uint64(32)
_NUM_ROUNDS = 10

# Tokens whose race noise shares one group minimum; divides 2**32, so the holder of it is uniform.
RACE_GROUP_LEN = 64


class Purpose(IntEnum):
    """One independent stream per use, so that no draw is used twice."""

    ACCEPT = 0
    RESIDUAL = 1
    DRAFT = 2
    RACE = 3
    BONUS = 4
    RACE_GROUP = 5


def philox(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10, element by element, on 32-bit words held in uint64 arrays that broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c2 = (product_1 >> _WORD_BITS) ^ c1 ^ k0, (product_0 >> _WORD_BITS) ^ c3 ^ k1
        c1, c3 = product_1 & _MASK, product_0 & _MASK
        k0, k1 = (k0 + _WEYL_0) & _MASK, (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int, purpose: Purpose, index: int = 0) -> float:
    """One uniform number in (0, 1) with 53 bits.

    Args:
        seed: key of the request, 0 <= seed < 2**64.
        position: absolute position of the token it decides about, below 2**32.
        purpose: what it decides.
        index: tells apart several draws for one position and purpose, below 2**32.
    """
    return float(uniforms([seed], [position], purpose, [index])[0])


def uniforms(
    seeds: Sequence[int],  # [R]
    positions: Sequence[int],  # [R]
    purpose: Purpose,
    indices: Sequence[int] | None = None,  # [R], default all 0
) -> npt.NDArray[np.float64]:
    """`uniform` for many requests at once, [R]."""
    key = _key(np.asarray(seeds, dtype=np.uint64))
    position = np.asarray(positions, dtype=np.uint64)
    index = np.zeros_like(position) if indices is None else np.asarray(indices, dtype=np.uint64)
    words = philox((index, position, np.full_like(position, purpose), np.zeros_like(position)), key)
    return _unit_interval(words[0], words[1])


def race_noise(
    seeds: int | npt.NDArray[np.uint64],
    positions: int | npt.NDArray[np.uint64],
    token_ids: npt.NDArray[np.integer],
) -> npt.NDArray[np.float64]:
    """Independent Exp(1) noise per token; the three arguments broadcast against each other.

    The noise of a token does not depend on which other tokens are asked for, so draft and target see
    the same. It is built in two levels so that a race can skip most of the vocabulary: the minimum of
    a group of `RACE_GROUP_LEN` tokens is Exp(1) / RACE_GROUP_LEN and each token is equally likely to
    hold it; by memorylessness the others lie an independent Exp(1) above it.
    """
    seed, position = np.asarray(seeds, dtype=np.uint64), np.asarray(positions, dtype=np.uint64)
    token = token_ids.astype(np.uint64)
    minima, holders = race_group_minima(seed, position, token // RACE_GROUP_LEN)
    # One block of 128 bits serves an even token and the odd one after it.
    words = philox(_counter(token >> np.uint64(1), position, Purpose.RACE), _key(seed))
    is_odd = (token & np.uint64(1)).astype(bool)
    above = -np.log(
        _unit_interval(np.where(is_odd, words[2], words[0]), np.where(is_odd, words[3], words[1]))
    )
    return np.where(token % RACE_GROUP_LEN == holders, minima, minima + above)


def race_group_minima(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64], groups: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.float64], Words]:
    """Smallest noise of each group of tokens and the place in the group (0-based) that holds it."""
    words = philox(_counter(groups.astype(np.uint64), positions, Purpose.RACE_GROUP), _key(seeds))
    return -np.log(_unit_interval(words[0], words[1])) / RACE_GROUP_LEN, words[2] % RACE_GROUP_LEN


def _counter(index: Words, position: Words, purpose: Purpose) -> tuple[Words, Words, Words, Words]:
    index, position = np.broadcast_arrays(index, position)
    return index, position, np.full_like(index, purpose), np.zeros_like(index)


def _key(seed: Words) -> tuple[Words, Words]:
    return seed & _MASK, seed >> _WORD_BITS


def _unit_interval(high: Words, low: Words) -> npt.NDArray[np.float64]:
    """53 of 64 bits as a number in (0, 1): half a unit keeps it off both ends."""
    bits = high << np.uint64(21) | low >> np.uint64(11)
    return (bits.astype(np.float64) + 0.5) * 2.0**-53
