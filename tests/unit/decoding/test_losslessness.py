"""The distribution over sequences: exactly, by enumerating every branch, and by sampling.

Sampling tests use fixed seeds; a chi-square bound here is exceeded once in a million.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.decoding.acceptance import (
    Judgement,
    accept_batch,
    acceptance_probability,
    normalised,
    residual_probs,
)
from dspark.decoding.drafting import draft_tokens
from dspark.decoding.sampling import shaped_probs
from dspark.decoding.types import SamplingParams, SparseProbs
from dspark.scheduling.allocation import allocate_early_stop, allocate_fixed
from dspark.scheduling.capacity import CapacityCurve

Prefix = tuple[int, ...]
# Chooses the prefix length of one block; sees its confidences one by one.
Policy = Callable[[Iterator[float], int], int]


class Tables:
    """Target and drafter as tables over prefixes, the drafter over part of the vocabulary."""

    def __init__(self, target, draft, token_map, gamma, sampling) -> None:
        self.vocab_size = len(target[()])
        self.target, self.draft, self.token_map = target, draft, torch.tensor(token_map)
        self.gamma, self.sampling = gamma, sampling

    def target_probs(self, prefix: Prefix) -> torch.Tensor:
        return shaped_probs(torch.tensor(self.target[prefix[-2:]], dtype=torch.float64), self.sampling)

    def draft_probs(self, prefix: Prefix) -> SparseProbs:
        logits = torch.tensor([self.draft[prefix[-2:]]])
        support = draft_tokens(logits, [self.sampling], [len(prefix)], self.token_map)[1][0]
        assert support is not None
        return support

    def confidences(self, prefix: Prefix, drafts: Prefix) -> Iterator[float]:
        """Confidence k sees the drafts before k, as the head does: any function of them will do."""
        for k in range(len(drafts)):
            yield 0.05 + 0.9 * (hash((prefix, drafts[:k])) % 1009) / 1009


def blocks(tables: Tables, prefix: Prefix) -> Iterator[tuple[float, Prefix, list[SparseProbs]]]:
    """Every block the drafter can propose, with its probability."""
    partial: list[tuple[float, Prefix, list[SparseProbs]]] = [(1.0, (), [])]
    for _ in range(tables.gamma):
        grown = []
        for weight, drafts, supports in partial:
            support = tables.draft_probs(prefix + drafts)
            for token, prob in zip(support.token_ids.tolist(), normalised(support), strict=True):
                grown.append((weight * prob, (*drafts, token), [*supports, support]))
        partial = grown
    yield from partial


def outcomes(
    tables: Tables, prefix: Prefix, drafts: Prefix, supports: list[SparseProbs]
) -> Iterator[tuple[float, Prefix]]:
    """Every way a scheduled prefix can be judged, with its probability, by the rule in use."""
    alive = 1.0
    for k, (token, support) in enumerate(zip(drafts, supports, strict=True)):
        target = tables.target_probs(prefix + drafts[:k])
        draft_prob = normalised(support)[support.token_ids.tolist().index(token)]
        survives = acceptance_probability(float(target[token]), draft_prob)
        if survives < 1.0:
            for other, prob in enumerate(residual_probs(target, support).tolist()):
                yield alive * (1.0 - survives) * prob, (*drafts[:k], other)
        alive *= survives
    for other, prob in enumerate(tables.target_probs(prefix + drafts).tolist()):
        yield alive * prob, (*drafts, other)


def speculative_distribution(tables: Tables, policy: Policy, num_tokens: int) -> dict[Prefix, float]:
    """Distribution of the first tokens of the output, round after round."""
    done: dict[Prefix, float] = dict.fromkeys(product(range(tables.vocab_size), repeat=num_tokens), 0.0)
    open_prefixes: dict[Prefix, float] = {(): 1.0}
    while open_prefixes:
        prefix, mass = open_prefixes.popitem()
        for weight, drafts, supports in blocks(tables, prefix):
            length = policy(tables.confidences(prefix, drafts), len(prefix))
            for prob, committed in outcomes(tables, prefix, drafts[:length], supports[:length]):
                sequence = prefix + committed
                bucket = done if len(sequence) >= num_tokens else open_prefixes
                key = sequence[:num_tokens]
                bucket[key] = bucket.get(key, 0.0) + mass * weight * prob
    return done


def target_distribution(tables: Tables, num_tokens: int) -> dict[Prefix, float]:
    result = {}
    for sequence in product(range(tables.vocab_size), repeat=num_tokens):
        probs = [float(tables.target_probs(sequence[:k])[sequence[k]]) for k in range(num_tokens)]
        result[sequence] = float(np.prod(probs))
    return result


def early_stop(curve: CapacityCurve) -> Policy:
    return lambda confidences, _: allocate_early_stop([confidences], curve)[0]


FIXED: list[Policy] = [
    lambda confidences, _, length=length: allocate_fixed([len(list(confidences))], length)[0]
    for length in range(4)
]
CURVES = [CapacityCurve.from_points([(1, 1.0), (4, 1.0 + slope * 3)]) for slope in (0.05, 0.3, 0.6)]
POLICIES: list[Policy] = [
    *FIXED,
    *map(early_stop, CURVES),
    # Another length in every round.
    lambda confidences, num_before: min(len(list(confidences)), (num_before * 7) % 4),
]


@st.composite
def tables(draw) -> Tables:
    vocab_size = draw(st.integers(2, 4))
    gamma = draw(st.integers(2, 3)) if vocab_size < 4 else 2
    token_map = draw(st.permutations(range(vocab_size)))[: draw(st.integers(1, vocab_size))]
    prefixes = [p for length in range(3) for p in product(range(vocab_size), repeat=length)]
    logit = st.floats(-6, 6, width=32)

    def table(size):
        return {prefix: draw(st.lists(logit, min_size=size, max_size=size)) for prefix in prefixes}

    sampling = SamplingParams(
        temperature=draw(st.sampled_from([0.7, 1.0, 1.5])),
        top_p=draw(st.sampled_from([1.0, 0.8])),
        top_k=draw(st.sampled_from([0, 2])),
    )
    return Tables(table(vocab_size), table(len(token_map)), token_map, gamma, sampling)


@given(tables=tables(), policy=st.sampled_from(POLICIES))
@settings(max_examples=25, deadline=None)
def test_by_enumeration_the_output_is_distributed_as_the_target(tables, policy):
    found = speculative_distribution(tables, policy, 3)
    expected = target_distribution(tables, 3)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    for sequence, prob in expected.items():
        assert found[sequence] == pytest.approx(prob, abs=1e-12)


def with_point_masses(tables: Tables) -> Tables:
    """The same target with a drafter that copies: all of its distribution is one token."""
    sure = {
        prefix: [1000.0 * (place == int(np.argmax(row))) for place in range(len(row))]
        for prefix, row in tables.draft.items()
    }
    return Tables(tables.target, sure, tables.token_map.tolist(), tables.gamma, tables.sampling)


@given(tables=tables(), policy=st.sampled_from(POLICIES))
@settings(max_examples=15, deadline=None)
def test_by_enumeration_copied_drafts_leave_the_distribution_as_it_is(tables, policy):
    copied = with_point_masses(tables)
    assert [one.probs.tolist() for _, _, supports in blocks(copied, ()) for one in supports] == [
        [1.0]
    ] * copied.gamma
    found = speculative_distribution(copied, policy, 3)
    for sequence, prob in target_distribution(copied, 3).items():
        assert found[sequence] == pytest.approx(prob, abs=1e-12)


def random_tables(seed: int, sampling: SamplingParams) -> Tables:
    rng = np.random.default_rng(seed)
    prefixes = [p for length in range(3) for p in product(range(4), repeat=length)]
    target = {prefix: rng.normal(0, 1.2, 4).tolist() for prefix in prefixes}
    draft = {
        prefix: (np.array(target[prefix])[[2, 0, 1]] + rng.normal(0, 0.7, 3)).tolist() for prefix in prefixes
    }
    return Tables(target, draft, [2, 0, 1], 3, sampling)


def sample(
    tables: Tables,
    policy: Policy,
    num_tokens: int,
    seeds: range,
    *,
    sent: Callable[[SparseProbs], SparseProbs] = lambda support: support,
) -> list[Prefix]:
    """Speculative decoding through the real drafting, scheduling, acceptance and randomness."""
    samplings = [
        SamplingParams(tables.sampling.temperature, tables.sampling.top_p, tables.sampling.top_k, seed=seed)
        for seed in seeds
    ]
    outputs: list[Prefix] = [()] * len(seeds)
    while active := [n for n, output in enumerate(outputs) if len(output) < num_tokens]:
        drafts: dict[int, Prefix] = dict.fromkeys(active, ())
        supports: dict[int, list[SparseProbs]] = {n: [] for n in active}
        for k in range(tables.gamma):
            logits = torch.tensor([tables.draft[(outputs[n] + drafts[n])[-2:]] for n in active])
            bases = [len(outputs[n]) for n in active]
            chosen, probs = draft_tokens(
                logits,
                [samplings[n] for n in active],
                [base + k for base in bases],
                tables.token_map,
                bases=bases,
            )
            for n, token, support in zip(active, chosen.tolist(), probs, strict=True):
                drafts[n] += (token,)
                supports[n].append(sent(support))
        judgements, rows = [], []
        for n in active:
            length = policy(tables.confidences(outputs[n], drafts[n]), len(outputs[n]))
            kept = drafts[n][:length]
            judgements.append(
                Judgement(
                    len(rows),
                    len(outputs[n]),
                    np.array(kept, dtype=np.int32),
                    tuple(supports[n][:length]),
                    samplings[n],
                )
            )
            rows.extend(tables.target[(outputs[n] + kept[:k])[-2:]] for k in range(length + 1))
        verdicts = accept_batch(torch.tensor(rows, dtype=torch.float64), judgements)
        for n, verdict in zip(active, verdicts, strict=True):
            outputs[n] += verdict.token_ids
    return [output[:num_tokens] for output in outputs]


def assert_distributed(samples: list[Prefix], expected: dict[Prefix, float]) -> None:
    """Chi-square over the cells expected at least 5 times, the others pooled."""
    counts = dict.fromkeys(expected, 0)
    for output in samples:
        counts[output] += 1
    pairs = [(counts[sequence], len(samples) * prob) for sequence, prob in expected.items()]
    large = [pair for pair in pairs if pair[1] >= 5]
    rest = np.sum([pair for pair in pairs if pair[1] < 5], axis=0) if len(large) < len(pairs) else (0, 0)
    cells = [*large, tuple(rest)] if rest[1] > 0 else large
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    freedom = len(cells) - 1
    # Wilson-Hilferty at 4.753 standard deviations, one in a million.
    bound = freedom * (1 - 2 / (9 * freedom) + 4.753 * np.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < bound, (statistic, bound)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(temperature=0.7, top_p=0.9), SamplingParams(top_k=2)]
)
@pytest.mark.parametrize(
    "policy", [FIXED[0], FIXED[3], early_stop(CURVES[1])], ids=["plain", "full", "early-stop"]
)
def test_by_sampling_the_output_is_distributed_as_the_target(sampling, policy):
    tables = random_tables(7, sampling)
    assert_distributed(sample(tables, policy, 3, range(2500)), target_distribution(tables, 3))


@pytest.mark.parametrize("policy", [FIXED[3], early_stop(CURVES[1])], ids=["full", "early-stop"])
def test_by_sampling_copied_drafts_leave_the_distribution_as_it_is(policy):
    tables = with_point_masses(random_tables(7, SamplingParams()))
    assert_distributed(sample(tables, policy, 3, range(2500)), target_distribution(tables, 3))


def test_the_sampling_test_notices_a_drafter_that_misstates_its_distribution():
    tables = random_tables(7, SamplingParams())

    def as_if_uniform(support: SparseProbs) -> SparseProbs:
        return SparseProbs(support.token_ids, np.ones_like(support.probs))

    samples = sample(tables, FIXED[3], 3, range(2500), sent=as_if_uniform)
    with pytest.raises(AssertionError):
        assert_distributed(samples, target_distribution(tables, 3))
