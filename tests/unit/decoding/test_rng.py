"""Counter-based randomness. Statistical tests use fixed seeds; their error rates are one in a million."""

from __future__ import annotations

import numpy as np
import pytest

from dspark.decoding.rng import (
    RACE_GROUP_LEN,
    Purpose,
    philox,
    race_group_minima,
    race_noise,
    uniform,
    uniforms,
)

# Quantile of the standard normal for an error rate of 1e-6, two-sided.
Z = 4.9


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # Published with Random123 (kat_vectors, philox4x32 with 10 rounds).
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, expected):
    def words(values):
        return tuple(np.array([value], dtype=np.uint64) for value in values)

    assert tuple(int(word[0]) for word in philox(words(counter), words(key))) == expected


def test_one_draw_equals_that_of_a_batch():
    seeds, positions = [0, 7, 2**64 - 1], [0, 1000, 2**32 - 1]
    batch = uniforms(seeds, positions, Purpose.RESIDUAL, [0, 1, 2])
    singles = [
        uniform(seed, position, Purpose.RESIDUAL, index)
        for seed, position, index in zip(seeds, positions, range(3), strict=True)
    ]
    assert batch.tolist() == singles
    assert all(0.0 < value < 1.0 for value in singles)


def test_seed_position_purpose_and_index_each_give_another_stream():
    draws = {
        uniform(seed, position, purpose, index)
        for seed in (0, 1, 2**32, 2**63)
        for position in (0, 1, 5)
        for purpose in Purpose
        for index in (0, 1)
    }
    assert len(draws) == 4 * 3 * len(Purpose) * 2


def test_uniforms_are_uniform_and_neighbours_are_uncorrelated():
    num = 200_000
    draws = uniforms([3] * num, list(range(num)), Purpose.ACCEPT)
    counts = np.bincount((draws * 100).astype(int), minlength=100)
    chi_square = ((counts - num / 100) ** 2 / (num / 100)).sum()
    assert abs(chi_square - 99) < Z * np.sqrt(2 * 99)
    other = uniforms([4] * num, list(range(num)), Purpose.ACCEPT)
    for left, right in ((draws[:-1], draws[1:]), (draws, other)):
        assert abs(np.corrcoef(left, right)[0, 1]) < Z / np.sqrt(num)


def test_race_noise_of_a_token_does_not_depend_on_who_else_is_asked_for():
    everyone = race_noise(9, 4, np.arange(5000))
    some = np.array([4999, 0, 63, 64, 65, 1234])
    assert race_noise(9, 4, some).tolist() == everyone[some].tolist()
    batch = race_noise(
        np.array([[9], [8]], dtype=np.uint64), np.array([[4], [4]], dtype=np.uint64), some[None]
    )
    assert batch[0].tolist() == everyone[some].tolist()
    assert not set(batch[1]) & set(batch[0])


def test_race_noise_is_exponential_and_independent_between_tokens_of_a_group():
    num = 2000
    noise = race_noise(11, np.arange(num, dtype=np.uint64)[:, None], np.arange(2 * RACE_GROUP_LEN)[None])
    counts = np.bincount((np.exp(-noise) * 64).astype(int).ravel(), minlength=64)
    expected = noise.size / 64
    assert abs(((counts - expected) ** 2 / expected).sum() - 63) < Z * np.sqrt(2 * 63)
    for right in (1, 2, RACE_GROUP_LEN - 1, RACE_GROUP_LEN):
        correlation = np.corrcoef(np.exp(-noise[:, 0]), np.exp(-noise[:, right]))[0, 1]
        assert abs(correlation) < Z / np.sqrt(num)


def test_the_group_minimum_is_the_smallest_noise_of_the_group():
    position = np.arange(50, dtype=np.uint64)[:, None]
    noise = race_noise(11, position, np.arange(RACE_GROUP_LEN)[None] + 3 * RACE_GROUP_LEN)
    minima, holders = race_group_minima(np.array(11, dtype=np.uint64), position, np.array([3]))
    assert minima[:, 0].tolist() == noise.min(axis=1).tolist()
    assert holders[:, 0].tolist() == noise.argmin(axis=1).tolist()
