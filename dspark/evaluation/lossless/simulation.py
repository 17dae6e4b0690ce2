"""Speculative decoding over tables through the production drafting, acceptance and randomness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from dspark.decoding.acceptance import Judgement, Verdict, accept_batch
from dspark.decoding.drafting import draft_tokens
from dspark.decoding.types import Acceptance, SamplingParams, SparseProbs
from dspark.evaluation.lossless.policies import Policy
from dspark.evaluation.lossless.tables import Prefix, Tables


@dataclass(slots=True)
class _Request:
    """One output on its way."""

    sampling: SamplingParams
    output: Prefix = ()
    drafts: Prefix = ()
    supports: list[SparseProbs] = field(default_factory=list)


# How drafts are judged; the default is the production function.
Acceptor = Callable[[Tensor, Sequence[Judgement]], list[Verdict]]


def sample_outputs(
    tables: Tables,
    policy: Policy,
    num_tokens: int,
    seeds: Sequence[int],
    acceptance: Acceptance,
    *,
    accept: Acceptor = accept_batch,
) -> list[Prefix]:
    """The first tokens of one output per seed."""
    temperature = 0.0 if acceptance is Acceptance.GREEDY else tables.sampling.temperature
    requests = [
        _Request(replace(tables.sampling, temperature=temperature, seed=seed, acceptance=acceptance))
        for seed in seeds
    ]
    while active := [one for one in requests if len(one.output) < num_tokens]:
        _draft(tables, active)
        _verify(tables, policy, active, accept)
    return [one.output[:num_tokens] for one in requests]


def _draft(tables: Tables, requests: Sequence[_Request]) -> None:
    bases = [len(one.output) for one in requests]
    samplings = [one.sampling for one in requests]
    for one in requests:
        one.drafts, one.supports = (), []
    for place in range(tables.gamma):
        logits = torch.stack([tables.draft_logits(one.output + one.drafts) for one in requests])
        positions = [base + place for base in bases]
        token_ids, supports = draft_tokens(logits, samplings, positions, tables.token_map, bases=bases)
        for one, token_id, support in zip(requests, token_ids.tolist(), supports, strict=True):
            one.drafts += (token_id,)
            one.supports += [support] if support is not None else []


def _verify(tables: Tables, policy: Policy, requests: Sequence[_Request], accept: Acceptor) -> None:
    judgements: list[Judgement] = []
    rows: list[Tensor] = []
    for one in requests:
        length = policy(tables.confidences(one.output, one.drafts))
        kept = np.array(one.drafts[:length], dtype=np.int32)
        judgements.append(
            Judgement(
                len(rows),
                len(one.output),
                kept,
                tuple(one.supports[:length]),
                one.sampling,
                tables.adjuster(one.output),
            )
        )
        rows += [tables.target_logits(one.output + one.drafts[:place]) for place in range(length + 1)]
    for one, verdict in zip(requests, accept(torch.stack(rows), judgements), strict=True):
        one.output += verdict.token_ids
