"""Shaped distributions and draws, against slow and obvious versions of the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.decoding.race import race_winners
from dspark.decoding.rng import race_noise
from dspark.decoding.sampling import argmax_with_margin, draw, shaped_probs, shaped_probs_of_rows
from dspark.decoding.types import SamplingParams

# Coarse values, so that ties are common.
logit_lists = st.lists(st.integers(-6, 6).map(lambda n: n / 2), min_size=1, max_size=12)


def slow_shaped_probs(logits, sampling):
    """The definition, token by token."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if sampling.temperature == 0.0:
        return (np.arange(len(logits)) == order[0]).astype(float)
    probs = np.exp((np.array(logits) - max(logits)) / sampling.temperature)
    probs /= probs.sum()
    if sampling.top_k:
        probs[order[sampling.top_k :]] = 0.0
        probs /= probs.sum()
    if sampling.top_p < 1.0:
        held = 0.0
        for token in order:
            if held >= sampling.top_p - 1e-12:
                probs[token] = 0.0
            held += probs[token]
        probs /= probs.sum()
    if sampling.min_p:
        probs[probs < sampling.min_p * probs.max()] = 0.0
        probs /= probs.sum()
    return probs


@given(
    logits=logit_lists,
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.integers(0, 13),
    # Off the sums that coarse values can reach, where rounding would decide.
    top_p=st.sampled_from([0.0317, 0.51234, 0.9123, 1.0]),
    min_p=st.sampled_from([0.0, 0.0513, 0.3217]),
)
@settings(max_examples=300, deadline=None)
def test_shaped_probs_follow_their_definition(logits, temperature, top_k, top_p, min_p):
    sampling = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    found = shaped_probs(torch.tensor(logits, dtype=torch.float32), sampling)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), slow_shaped_probs(logits, sampling), rtol=1e-9, atol=1e-15)


def test_rows_may_be_shaped_differently_and_do_not_touch_each_other():
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    samplings = [
        SamplingParams(temperature=0.5),
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.9),
        SamplingParams(temperature=0.0),
    ]
    together = shaped_probs_of_rows(logits, samplings)
    for row, sampling in enumerate(samplings):
        assert torch.equal(together[row], shaped_probs(logits[row], sampling))
    assert together[3].argmax() == logits[3].argmax()
    assert together[3].max() == 1.0


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(top_k=50),
        SamplingParams(top_k=300, top_p=0.9123),
        SamplingParams(top_p=0.5, temperature=2.0),
        SamplingParams(top_p=0.31234),
        SamplingParams(min_p=0.0513),
        SamplingParams(temperature=0.0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_large_vocabulary_full_of_ties_is_cut_as_a_small_one(sampling, dtype):
    logits = (2 * torch.randn(5, 64 * 300, generator=torch.Generator().manual_seed(4))).bfloat16().to(dtype)
    logits[1] += 5 * (torch.arange(64 * 300) == 777)
    found = shaped_probs(logits, sampling)
    for row in range(5):
        expected = slow_shaped_probs(logits[row].double().tolist(), sampling)
        np.testing.assert_allclose(found[row].numpy(), expected, rtol=1e-9, atol=1e-15)


def test_a_flat_nucleus_larger_than_the_first_guess_is_found():
    probs = shaped_probs(torch.zeros(1000), SamplingParams(top_p=0.7501))
    assert torch.equal(probs > 0, torch.arange(1000) < 751)


@pytest.mark.parametrize("num_tokens", [1, 2, 255, 256, 257, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_argmax_is_the_lowest_id_of_the_best_and_comes_with_the_runner_up(num_tokens, dtype):
    generator = torch.Generator().manual_seed(num_tokens)
    logits = torch.randint(-3, 4, (50, num_tokens), generator=generator).to(dtype)
    token_ids, best, second = argmax_with_margin(logits)
    for row, values in enumerate(logits.tolist()):
        assert token_ids[row] == values.index(max(values))
        assert best[row] == max(values)
        values.remove(max(values))
        assert second[row] == max(values, default=-torch.inf)


@pytest.mark.parametrize("num_tokens", [3, 256, 700])
def test_a_draw_inverts_the_cumulative_distribution(num_tokens):
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(200, num_tokens, generator=generator, dtype=torch.float64)
    weights[weights < 0.6] = 0.0
    weights[:, 1] += 0.1
    uniforms = np.linspace(1e-9, 1 - 1e-9, 200)
    found = draw(weights, uniforms)
    ends = np.cumsum(weights.numpy(), axis=1)
    expected = [
        np.searchsorted(end, u * end[-1], side="right") for end, u in zip(ends, uniforms, strict=True)
    ]
    assert found.tolist() == expected


def test_a_draw_at_the_very_end_takes_the_last_token_with_weight():
    weights = torch.zeros(2, 600, dtype=torch.float64)
    weights[:, 300] = 0.1
    weights[1, 7] = 0.2
    assert draw(weights, np.array([1.0, 1.0])).tolist() == [300, 300]


@pytest.mark.parametrize("num_tokens", [2, 64, 100, 5000])
@pytest.mark.parametrize("scale", [0.0, 1.0, 6.0])
def test_the_race_with_closed_groups_has_the_winner_of_the_full_race(num_tokens, scale):
    generator = torch.Generator().manual_seed(num_tokens)
    logits = scale * torch.randn(60, num_tokens, generator=generator)
    weights = shaped_probs(logits, SamplingParams())
    weights[:30] = shaped_probs(logits[:30], SamplingParams(top_k=2))
    seeds, positions = list(range(60)), [5 * n for n in range(60)]
    noise = race_noise(
        np.array(seeds, dtype=np.uint64)[:, None],
        np.array(positions, dtype=np.uint64)[:, None],
        np.arange(num_tokens)[None],
    )
    with np.errstate(divide="ignore"):
        expected = (noise / weights.numpy()).argmin(axis=1)
    assert race_winners(weights, seeds, positions).tolist() == expected.tolist()


def test_race_winners_are_distributed_as_the_weights():
    # Chi-square with 4 degrees of freedom; 33.4 is exceeded once in a million.
    probs = torch.tensor([0.4, 0.3, 0.2, 0.09, 0.01], dtype=torch.float64)
    num = 20_000
    winners = race_winners(probs.expand(num, 5), list(range(num)), [3] * num)
    counts = np.bincount(winners, minlength=5)
    expected = num * probs.numpy()
    assert ((counts - expected) ** 2 / expected).sum() < 33.4
