"""Losslessness on a real model in its own dtype: greedy, coupled and sampled outputs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import numpy as np

from dspark.decoding.types import GenerationRequest
from dspark.evaluation.generation import Generation, LocalDecoder
from dspark.evaluation.lossless.obstacles import UselessDrafter
from dspark.evaluation.lossless.outputs import decode, places_of
from dspark.evaluation.lossless.real_pair import RESCORING_MARGIN, RealPair, tokens_of
from dspark.evaluation.lossless.rescoring import Rescored, rescore
from dspark.evaluation.lossless.restart import LeftBehind
from dspark.evaluation.lossless.statistics import ERROR_RATE, uniform_p_value
from dspark.evaluation.verdict import Check

SAMPLING_TEMPERATURE = 0.8
_POLICY = "fixed"
# A request among 31 others.
_COMPANY = 32


async def greedy_checks(pair: RealPair) -> AsyncIterator[Check]:
    """Greedy outputs: right by the stock model, and the same without drafts."""
    requests = pair.requests(0.0)
    drafted = await pair.decode(requests, _POLICY)
    scored = Rescored.of(
        rescore(pair.stock, request, output, RESCORING_MARGIN)
        for request, output in zip(requests, drafted, strict=True)
    )
    wanted = f"argmax, or within {RESCORING_MARGIN:g} of it"
    yield Check("greedy tokens re-scored by transformers", scored.found, wanted, not scored.outside)
    plain = await pair.decode_alone(requests, "off")
    yield pair.same_text("greedy text without and with drafts", requests, tokens_of(plain), drafted)


async def coupled_checks(pair: RealPair) -> AsyncIterator[Check]:
    """Coupled outputs: the same without drafts, in company, with a useless drafter, and after a restart."""
    requests = pair.requests(SAMPLING_TEMPERATURE, seed=1, is_coupled=True)
    plain = tokens_of(await pair.decode_alone(requests, "off"))
    alone = await pair.decode_alone(requests, _POLICY)
    yield pair.same_text("coupled text without and with drafts", requests, plain, alone)
    together = await decode(pair.engines, _POLICY, [*requests, *_fillers(pair, requests)])
    name = f"coupled text alone and among {_COMPANY - 1} others"
    yield pair.same_text(name, requests, plain, together[: len(requests)])
    useless = await decode(pair.engines, _POLICY, requests, wrap=UselessDrafter)
    yield pair.same_text("coupled text with a useless drafter", requests, plain, useless)
    resumed = await _resumed(pair, requests, plain)
    rests = [tokens[len(tokens) // 2 :] for tokens in plain]
    yield pair.same_text("coupled text after a restart half way", requests, rests, resumed)


async def sampling_check(pair: RealPair, num_seeds: int) -> Check:
    """Rejection sampling: tokens are distributed as the stock model says, by their place in it."""
    values = []
    for seed in range(num_seeds):
        requests = pair.requests(SAMPLING_TEMPERATURE, seed=1 + 1000 * seed)
        values.append(places_of(pair.stock, requests, await pair.decode(requests, _POLICY)).values)
    places = np.concatenate(values)
    p_value = uniform_p_value(places)
    return Check(
        f"sampled tokens at temperature {SAMPLING_TEMPERATURE:g} by chi-square",
        f"p {p_value:.2g}, {len(places)} tokens",
        f">= {ERROR_RATE:.1g}",
        p_value >= ERROR_RATE,
    )


async def _resumed(
    pair: RealPair, requests: Sequence[GenerationRequest], outputs: Sequence[Sequence[int]]
) -> list[Generation]:
    """What another loop adds to the first halves of outputs."""
    store = LeftBehind(
        [(request, tokens[: len(tokens) // 2]) for request, tokens in zip(requests, outputs, strict=True)]
    )
    async with LocalDecoder(pair.engines, policy=_POLICY, store=store) as decoder:
        return await decoder.resume(store.received)


def _fillers(pair: RealPair, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
    """Requests that fill the batch, under other names and seeds."""
    missing = max(0, _COMPANY - len(requests))
    others = [
        one
        for turn in range(-(-missing // len(requests)))
        for one in pair.requests(SAMPLING_TEMPERATURE, seed=7000 + 100 * turn, is_coupled=True)
    ]
    return [replace(one, request_id=f"filler-{number}") for number, one in enumerate(others[:missing])]
