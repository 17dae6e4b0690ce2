"""Losslessness on a real model in its own dtype, re-scored by the stock transformers forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.acceptance import NEAR_TIE_MARGIN
from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.sampling import shaped_probs
from dspark.decoding.types import GenerationRequest
from dspark.evaluation.generation import Engines, Generation, LocalDecoder
from dspark.evaluation.lossless.definition import rows_by_definition
from dspark.evaluation.lossless.statistics import ERROR_RATE, place_in_distribution, uniform_p_value
from dspark.evaluation.requests import make_requests, sampling_of
from dspark.evaluation.stock import StockModel
from dspark.evaluation.tasks import TaskPrompt
from dspark.evaluation.verdict import Check

# Two forwards that round in different places differ by a few units in the last place; one of bfloat16 is at
# most 2^-7 of the best logit.
RESCORING_MARGIN = 4 * NEAR_TIE_MARGIN
SAMPLING_TEMPERATURE = 0.8
_POLICY = "fixed"
_BATCH = 8
# Every so many prompts are decoded with adjusted logits too: one of each task by default.
_ADJUSTED_STRIDE = 3


@dataclass(frozen=True, slots=True)
class Rescored:
    """What teacher forcing by the stock model says about greedy outputs.

    Attributes:
        num_near_ties: tokens that are not its argmax but within the margin.
        worst: the largest gap to the best logit, relative to it.
        outside: names of prompts with a token outside the margin.
    """

    num_tokens: int
    num_near_ties: int
    worst: float
    outside: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RealPair:
    """Everything the checks on a real model need."""

    engines: Engines
    stock: StockModel
    prompts: Sequence[TaskPrompt]
    max_new_tokens: int

    def requests(
        self, temperature: float, *, seed: int = 0, is_coupled: bool = False
    ) -> list[GenerationRequest]:
        """One request per prompt."""
        eos = self.engines.target.info.eos_token_ids
        return make_requests(
            self.prompts, self.max_new_tokens, eos, temperature=temperature, seed=seed, is_coupled=is_coupled
        )

    def adjusted_requests(self) -> list[GenerationRequest]:
        """One greedy request per prompt with everything that changes single logits."""
        adjustments = LogitAdjustments(
            repetition_penalty=1.1,
            presence_penalty=0.3,
            frequency_penalty=0.2,
            logit_bias=_biases_of(self.prompts),
            min_tokens=self.max_new_tokens // 2,
            ending_token_ids=self.engines.target.info.eos_token_ids,
        )
        return [
            replace(one, sampling=replace(one.sampling, adjustments=adjustments))
            for one in self.requests(0.0)
        ]

    async def decode(self, requests: Sequence[GenerationRequest], policy: str) -> list[Generation]:
        """Decode in batches of eight."""
        outputs: list[Generation] = []
        async with LocalDecoder(self.engines, policy=policy) as decoder:
            for start in range(0, len(requests), _BATCH):
                outputs += await decoder.generate(requests[start : start + _BATCH])
        return outputs

    async def decode_alone(self, requests: Sequence[GenerationRequest], policy: str) -> list[Generation]:
        """Decode one after the other."""
        async with LocalDecoder(self.engines, policy=policy) as decoder:
            return [(await decoder.generate([request]))[0] for request in requests]


async def greedy_checks(pair: RealPair) -> list[Check]:
    """Greedy outputs: right by the stock model, and the same without drafts; then with adjusted logits."""
    some = replace(pair, prompts=pair.prompts[::_ADJUSTED_STRIDE])
    return [
        *await _greedy_checks(pair, pair.requests(0.0), "greedy"),
        *await _greedy_checks(some, some.adjusted_requests(), "adjusted greedy"),
    ]


async def _greedy_checks(pair: RealPair, requests: Sequence[GenerationRequest], name: str) -> list[Check]:
    drafted = await pair.decode(requests, _POLICY)
    plain = await pair.decode_alone(requests, "off")
    scored = rescore(pair, requests, drafted)
    found = f"{scored.num_near_ties} near-ties in {scored.num_tokens} tokens, worst gap {scored.worst:.2g}"
    if scored.outside:
        found += f", outside: {', '.join(scored.outside)}"
    wanted = f"argmax, or within {RESCORING_MARGIN:g} of it"
    rescored = Check(f"{name} tokens re-scored by transformers", found, wanted, not scored.outside)
    return [rescored, _same_text(f"{name} text without and with drafts", pair, plain, drafted)]


async def coupled_checks(pair: RealPair) -> list[Check]:
    """Coupled outputs: the same without drafts, and the same alone as among seven others."""
    requests = pair.requests(SAMPLING_TEMPERATURE, seed=1, is_coupled=True)
    together = (await pair.decode([*requests, *_fillers(pair, len(requests))], _POLICY))[: len(requests)]
    alone = await pair.decode_alone(requests, _POLICY)
    plain = await pair.decode_alone(requests, "off")
    return [
        _same_text("coupled text without and with drafts", pair, plain, alone),
        _same_text(f"coupled text alone and among {_BATCH - 1} others", pair, alone, together),
    ]


async def sampling_check(pair: RealPair, num_seeds: int) -> Check:
    """Rejection sampling: tokens are distributed as the stock model says, by their place in it."""
    rng = np.random.default_rng(0)
    places = []
    for seed in range(num_seeds):
        requests = pair.requests(SAMPLING_TEMPERATURE, seed=1 + 1000 * seed)
        outputs = await pair.decode(requests, _POLICY)
        places += [
            place_in_distribution(probs, token_ids, rng) for probs, token_ids in _scored(pair, outputs)
        ]
    values = np.concatenate(places)
    p_value = uniform_p_value(values)
    return Check(
        f"sampled tokens at temperature {SAMPLING_TEMPERATURE:g} by chi-square",
        f"p {p_value:.2g}, {len(values)} tokens",
        f">= {ERROR_RATE:.1g}",
        p_value >= ERROR_RATE,
    )


def _fillers(pair: RealPair, num_requests: int) -> list[GenerationRequest]:
    """Requests that fill the last batch, under other names and seeds."""
    missing = -num_requests % _BATCH
    candidates = pair.requests(SAMPLING_TEMPERATURE, seed=7000, is_coupled=True) * _BATCH
    return [replace(one, request_id=f"filler-{number}") for number, one in enumerate(candidates[:missing])]


def _biases_of(prompts: Sequence[TaskPrompt]) -> tuple[tuple[int, float], ...]:
    """Biases up and down on tokens that the prompts hold, and so are likely to matter."""
    token_ids = sorted({token_id for prompt in prompts for token_id in prompt.token_ids})[::7]
    return tuple((token_id, 1.0 if place % 2 else -2.0) for place, token_id in enumerate(token_ids))


def rescore(pair: RealPair, requests: Sequence[GenerationRequest], outputs: Sequence[Generation]) -> Rescored:
    """Compare each greedy token with the stock model's best."""
    num_tokens = num_near_ties = 0
    worst, outside = 0.0, []
    for prompt, request, output in zip(pair.prompts, requests, outputs, strict=True):
        gaps = greedy_gaps(pair.stock, request, output.token_ids)
        num_tokens += len(gaps)
        num_near_ties += int(((gaps > 0) & (gaps <= RESCORING_MARGIN)).sum())
        worst = max(worst, float(gaps.max(initial=0.0)))
        if (gaps > RESCORING_MARGIN).any():
            outside.append(prompt.name)
    return Rescored(num_tokens, num_near_ties, worst, tuple(outside))


def greedy_gaps(
    stock: StockModel, request: GenerationRequest, output: Sequence[int]
) -> npt.NDArray[np.float64]:
    """How far each token lies below the best one, relative to the greatest logit of the model, [T]."""
    prompt = request.prompt_token_ids
    logits = stock.score((*prompt, *output), len(prompt))
    adjusted = rows_by_definition(logits, request.sampling.adjustments, prompt, output)
    chosen = adjusted[torch.arange(len(output)), torch.tensor(list(output))]
    # Rounding is relative to what the model computed, not to what adjustments made of it.
    gaps: npt.NDArray[np.float64] = ((adjusted.amax(-1) - chosen) / logits.amax(-1).abs()).numpy()
    return gaps


def _scored(pair: RealPair, outputs: Sequence[Generation]) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
    """The distribution behind each token of each output, and the tokens."""
    sampling = sampling_of(SAMPLING_TEMPERATURE, 0)
    for prompt, output in zip(pair.prompts, outputs, strict=True):
        logits = pair.stock.score((*prompt.token_ids, *output.token_ids), len(prompt.token_ids))
        yield shaped_probs(logits, sampling), output.token_ids


def _same_text(name: str, pair: RealPair, first: Sequence[Generation], second: Sequence[Generation]) -> Check:
    differing = [
        prompt.name
        for prompt, one, other in zip(pair.prompts, first, second, strict=True)
        if one.token_ids != other.token_ids
    ]
    info = pair.engines.target.info
    num_accepted = sum(delta.round.num_accepted for one in second for delta in one.rounds)
    found = f"{len(first) - len(differing)} of {len(first)}, {num_accepted} drafts accepted"
    if differing:
        found += f", differs: {', '.join(differing)}"
    if info.is_exact:
        return Check(name, found, "all the same", not differing)
    return Check(name, found, f"shown only, not exact: {info.exact_reason or 'unknown'}", True)
