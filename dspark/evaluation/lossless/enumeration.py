"""The exact distribution of the output, by following every draft, acceptance, residual and bonus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from torch import Tensor

from dspark.decoding.acceptance import acceptance_probability, normalised, residual_probs
from dspark.decoding.types import SparseProbs
from dspark.evaluation.lossless.policies import Policy
from dspark.evaluation.lossless.tables import Prefix, Tables

Distribution = dict[Prefix, float]


@dataclass(frozen=True, slots=True)
class AcceptRule:
    """How a draft is judged; the defaults are the production functions."""

    accept: Callable[[float, float], float] = acceptance_probability
    residual: Callable[[Tensor, SparseProbs], Tensor] = residual_probs


PRODUCTION = AcceptRule()


def output_distribution(
    tables: Tables, policy: Policy, num_tokens: int, rule: AcceptRule = PRODUCTION
) -> Distribution:
    """Distribution of the first tokens of the output under speculative decoding."""
    done: Distribution = dict.fromkeys(_sequences(tables, num_tokens), 0.0)
    unfinished: Distribution = {(): 1.0}
    while unfinished:
        prefix, mass = unfinished.popitem()
        for weight, drafts, supports in _blocks(tables, prefix):
            length = policy(tables.confidences(prefix, drafts))
            for prob, committed in _judged(tables, prefix, drafts[:length], supports, rule=rule):
                sequence = prefix + committed
                bucket = done if len(sequence) >= num_tokens else unfinished
                key = sequence[:num_tokens]
                bucket[key] = bucket.get(key, 0.0) + mass * weight * prob
    return done


def target_distribution(tables: Tables, num_tokens: int) -> Distribution:
    """Distribution of the first tokens under the target alone."""
    result = {}
    for sequence in _sequences(tables, num_tokens):
        prob = 1.0
        for place, token_id in enumerate(sequence):
            prob *= float(tables.target_probs(sequence[:place])[token_id])
        result[sequence] = prob
    return result


def largest_gap(found: Distribution, expected: Distribution) -> float:
    """Largest difference of the probability of any sequence."""
    return max(abs(found[sequence] - prob) for sequence, prob in expected.items())


def _sequences(tables: Tables, num_tokens: int) -> Iterator[Prefix]:
    return product(range(tables.vocab_size), repeat=num_tokens)


def _blocks(tables: Tables, prefix: Prefix) -> list[tuple[float, Prefix, tuple[SparseProbs, ...]]]:
    """Every block that may be drafted, with its probability."""
    blocks: list[tuple[float, Prefix, tuple[SparseProbs, ...]]] = [(1.0, (), ())]
    for _ in range(tables.gamma):
        grown = []
        for weight, drafts, supports in blocks:
            support = tables.draft_probs(prefix + drafts)
            for token_id, prob in zip(support.token_ids.tolist(), normalised(support).tolist(), strict=True):
                grown.append((weight * prob, (*drafts, token_id), (*supports, support)))
        blocks = grown
    return blocks


def _judged(
    tables: Tables, prefix: Prefix, drafts: Prefix, supports: Sequence[SparseProbs], *, rule: AcceptRule
) -> Iterator[tuple[float, Prefix]]:
    """Every way in which scheduled drafts may be judged, with its probability (paper §2.1)."""
    alive = 1.0
    *targets, last = tables.block_probs(prefix, drafts)
    # `supports` may be those of a longer block.
    for place, (token_id, target, support) in enumerate(zip(drafts, targets, supports, strict=False)):
        draft_prob = float(normalised(support)[support.token_ids.tolist().index(token_id)])
        survives = rule.accept(float(target[token_id]), draft_prob)
        if survives < 1.0:
            for other, prob in enumerate(rule.residual(target, support).tolist()):
                yield alive * (1.0 - survives) * prob, (*drafts[:place], other)
        alive *= survives
    for other, prob in enumerate(last.tolist()):
        yield alive * prob, (*drafts, other)
