"""Requests of every sampling setting, and whether their outputs are those of plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dspark.decoding.sampling import shaped_probs
from dspark.decoding.types import Acceptance, GenerationRequest, StepCost, StopParams
from dspark.errors import InvalidRequestError
from dspark.evaluation.generation import Engines, Generation, LocalDecoder
from dspark.evaluation.lossless.definition import kept_by_definition, rows_by_definition
from dspark.evaluation.lossless.matrix import Case
from dspark.evaluation.lossless.rescoring import Judge
from dspark.evaluation.lossless.settings import Setting
from dspark.evaluation.lossless.statistics import ERROR_RATE, place_in_distribution, uniform_p_value
from dspark.rounds.interfaces import Drafter
from dspark.rounds.planner import Planner

Requests = Sequence[GenerationRequest]


def requests_of(
    settings: Iterable[Setting],
    prompts: Sequence[tuple[int, ...]],
    acceptance: Acceptance,
    *,
    per_setting: int,
    max_new_tokens: int,
    eos_token_ids: Sequence[int] = (),
) -> list[GenerationRequest]:
    """So many requests per setting, each with the next prompt and a seed of its own.

    Greedy requests are made of the settings that matter to them only.
    """
    kept = [one for one in settings if acceptance is not Acceptance.GREEDY or one.is_greedy_too]
    found = []
    for number in range(per_setting * len(kept)):
        setting = kept[number // per_setting]
        stop = StopParams(max_new_tokens, frozenset((*eos_token_ids, *setting.stop_token_ids)))
        sampling = setting.sampling_of(acceptance, 1000 + number)
        name = f"{acceptance.value}, {setting.name}, {number % per_setting}"
        found.append(GenerationRequest(name, prompts[number % len(prompts)], sampling, stop))
    return found


# Seconds of a step by its rows: with such costs, policies that weigh them begin by drafting.
CHEAP_ROWS = (StepCost(1, 0.01), StepCost(64, 0.011))


async def decode(
    engines: Engines,
    policy: str | Planner,
    requests: Requests,
    *,
    wrap: Callable[[Drafter], Drafter] | None = None,
) -> list[Generation]:
    """Decode all requests in one batch, or as much of it as runs at once."""
    async with LocalDecoder(engines, policy=policy, wrap=wrap) as decoder:
        return await decoder.generate(requests)


async def refusal_case(
    engines: Engines, policy: str | Planner, name: str, level: str, requests: Requests
) -> Case:
    """Whether a policy refuses every one of these requests, which must all be under one rule."""
    acceptance, num_refused = requests[0].sampling.acceptance, 0
    async with LocalDecoder(engines, policy=policy) as decoder:
        for request in requests:
            try:
                await decoder.generate([request])
            except InvalidRequestError:
                num_refused += 1
    if num_refused == len(requests):
        return Case(name, acceptance, level, is_refused=True)
    return Case(name, acceptance, level, 0, len(requests), failed=("not refused",))


def same_text_case(
    policy: str, level: str, requests: Requests, plain: Sequence[Generation], found: Sequence[Generation]
) -> Case:
    """Whether outputs, all under one rule, are those of plain decoding.

    Where whole blocks are verified, outputs without an accepted draft test nothing and are wrong. Other
    policies may find drafts too dear.
    """
    failed = [
        request.request_id
        for request, one, other in zip(requests, plain, found, strict=True)
        if (one.token_ids, one.finish_reason) != (other.token_ids, other.finish_reason)
    ]
    total = num_accepted(found)
    if policy == "fixed" and total == 0:
        failed = ["no draft was accepted"] * len(requests)
    num_ok = len(requests) - len(failed)
    return Case(
        policy,
        requests[0].sampling.acceptance,
        level,
        num_ok,
        len(requests),
        num_accepted=total,
        failed=tuple(failed[:4]),
    )


def num_accepted(outputs: Iterable[Generation]) -> int:
    """Drafts accepted in all rounds of all outputs."""
    return sum(delta.round.num_accepted for one in outputs for delta in one.rounds)


@dataclass(frozen=True, slots=True)
class Places:
    """Where sampled tokens lie in their distributions.

    Attributes:
        values: uniform on [0, 1) if the tokens were drawn from these distributions.
        forbidden: ids of requests with a token that their truncations leave no probability.
    """

    values: npt.NDArray[np.float64]
    forbidden: tuple[str, ...]

    @property
    def p_value(self) -> float:
        """Chance of values as far from uniform as these."""
        return uniform_p_value(self.values)


def places_of(judge: Judge, requests: Requests, outputs: Sequence[Generation]) -> Places:
    """Place every token in the distribution that plain decoding would have drawn it from."""
    rng = np.random.default_rng(0)
    values, forbidden = [], []
    for request, output in zip(requests, outputs, strict=True):
        prompt, sampling = request.prompt_token_ids, request.sampling
        logits = judge.score((*prompt, *output.token_ids), len(prompt))
        rows = rows_by_definition(logits, sampling.adjustments, prompt, output.token_ids)
        values.append(place_in_distribution(shaped_probs(rows, sampling), output.token_ids, rng))
        kept = torch.stack([kept_by_definition(row, sampling) for row in rows])
        if not bool(kept[torch.arange(len(kept)), torch.tensor(output.token_ids)].all()):
            forbidden.append(request.request_id)
    return Places(np.concatenate(values), tuple(forbidden))


def places_case(
    policy: str, level: str, judge: Judge, requests: Requests, outputs: Sequence[Generation]
) -> Case:
    """Whether sampled outputs are drawn from the distributions of plain decoding, all settings together."""
    places = places_of(judge, requests, outputs)
    failed = list(places.forbidden)
    if places.p_value < ERROR_RATE:
        failed = [f"p {places.p_value:.2g}"] * len(requests)
    return Case(
        policy,
        requests[0].sampling.acceptance,
        level,
        len(requests) - len(failed),
        len(requests),
        num_accepted=num_accepted(outputs),
        failed=tuple(failed[:4]),
    )
