"""Losslessness of the whole loop over tiny models in float64: same tokens, same distribution."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from dspark.decoding.sampling import shaped_probs
from dspark.decoding.types import (
    Acceptance,
    GenerationRequest,
    SamplingParams,
    StopParams,
)
from dspark.evaluation.generation import Engines, Generation
from dspark.evaluation.lossless.definition import rows_by_definition
from dspark.evaluation.lossless.matrix import ARBITRARY, Case
from dspark.evaluation.lossless.mutations import MisstatingDrafter, PeekingPlanner
from dspark.evaluation.lossless.obstacles import ChangingPlanner, TellingDrafter
from dspark.evaluation.lossless.outputs import (
    CHEAP_ROWS,
    decode,
    num_accepted,
    places_case,
    refusal_case,
    requests_of,
    same_text_case,
)
from dspark.evaluation.lossless.settings import Setting, SettingTokens, all_settings
from dspark.evaluation.lossless.statistics import ERROR_RATE, sequences_p_value
from dspark.evaluation.lossless.tiny import VOCAB_SIZE, load_tiny_engines
from dspark.evaluation.stock import StockModel
from dspark.evaluation.verdict import Check
from dspark.rounds.planner import Planner, planner_of
from dspark.rounds.policies import POLICIES

_LEVEL = "tiny"
_NUM_TOKENS = 24
# Tokens of an output whose distribution is compared; the output goes on, so that whole blocks are drafted.
_NUM_COMPARED, _NUM_SAMPLED = 3, 8
_PROMPT = (1, 3, 0, 2)
_NUM_PROMPTS = 16
# Enough for a leak of some hundredths to show at the error rate, and for a wrong distribution.
_NUM_PEEKED, _NUM_MISSTATED = 1600, 300
_TOKENS = SettingTokens(biased=(1, 3), ending=(4,), stops=(2,), min_tokens=8, top_k=3)
# Of a random drafter, whose confidences are spread around one half.
_THRESHOLD = 0.4


@dataclass(frozen=True, slots=True)
class TinyPair:
    """The engines, and what judges them."""

    engines: Engines
    stock: StockModel

    @classmethod
    def load(cls, directory: Path) -> TinyPair:
        """Write the models below a directory and load them."""
        engines = load_tiny_engines(directory)
        # Policies that weigh costs shall begin by drafting.
        engines.target.info = replace(engines.target.info, step_cost=CHEAP_ROWS)
        return cls(engines, StockModel(directory / "target", "float64"))

    @property
    def gamma(self) -> int:
        """Drafts of a block."""
        assert self.engines.drafter is not None, "tiny engines have a drafter"
        return self.engines.drafter.info.gamma

    def planner(self, policy: str) -> Planner:
        """A new planner of this policy."""
        if policy == ARBITRARY:
            return ChangingPlanner(self.gamma)
        return planner_of(policy, fixed_len=self.gamma, threshold=_THRESHOLD)


def tiny_cases(pair: TinyPair, *, per_setting: int, num_sampled: int) -> Iterator[Case]:
    """Every policy under every rule and setting, through the whole loop.

    Args:
        pair: what decodes and judges.
        per_setting: outputs of each setting that are compared token by token.
        num_sampled: sampled outputs of each setting whose tokens are placed in their distributions.
    """
    settings = all_settings(_TOKENS)
    for rule in (Acceptance.GREEDY, Acceptance.COUPLED):
        requests = _requests(settings, rule, per_setting, _NUM_TOKENS)
        plain = asyncio.run(decode(pair.engines, "off", requests))
        for policy in (*POLICIES, ARBITRARY):
            found = asyncio.run(decode(pair.engines, pair.planner(policy), requests))
            yield same_text_case(policy, _LEVEL, requests, plain, found)
    requests = _requests(settings, Acceptance.REJECTION, num_sampled, _NUM_SAMPLED)
    for policy in (*POLICIES, ARBITRARY):
        planner = pair.planner(policy)
        if policy == "retrospective":
            some = requests[::num_sampled]
            yield asyncio.run(refusal_case(pair.engines, planner, policy, _LEVEL, some))
            continue
        outputs = asyncio.run(decode(pair.engines, planner, requests, wrap=TellingDrafter))
        yield places_case(policy, _LEVEL, pair.stock, requests, outputs)


def tiny_checks(pair: TinyPair, num_samples: int) -> Iterator[Check]:
    """Sampled sequences against their exact distribution, and what must be caught, each as it is done.

    Args:
        pair: what decodes and judges.
        num_samples: outputs of the sampling check; a third with adjusted logits.
    """
    everything = all_settings(_TOKENS)[-1].sampling
    for sampling, kind, share in ((SamplingParams(), "", 1), (everything, "adjusted ", 3)):
        name = f"tiny models: {kind}distribution by chi-square, rejection"
        yield asyncio.run(_same_distribution(name, pair, sampling, num_samples // share))
    yield from asyncio.run(_mutations(pair))


async def _mutations(pair: TinyPair) -> list[Check]:
    requests = _sampled(SamplingParams(), _NUM_PEEKED, max_new_tokens=_NUM_COMPARED + pair.gamma)
    peeking = await decode(pair.engines, PeekingPlanner(), requests, wrap=TellingDrafter)
    misstated = await decode(
        pair.engines, pair.planner("fixed"), requests[:_NUM_MISSTATED], wrap=MisstatingDrafter
    )
    expected = exact_distribution(pair.stock, SamplingParams())
    return [
        _is_caught(what, sequences_p_value(_first_tokens(outputs), expected))
        for what, outputs in (
            ("a policy that peeks", peeking),
            ("a drafter that misstates its distribution", misstated),
        )
    ]


def _is_caught(what: str, p_value: float) -> Check:
    name = f"tiny models: {what} (must be caught)"
    return Check(name, f"p {p_value:.2g}", f"< {ERROR_RATE:.1g}", p_value < ERROR_RATE)


def _first_tokens(outputs: Sequence[Generation]) -> Iterator[tuple[int, ...]]:
    return (one.token_ids[:_NUM_COMPARED] for one in outputs)


async def _same_distribution(name: str, pair: TinyPair, sampling: SamplingParams, num_samples: int) -> Check:
    outputs = await decode(pair.engines, pair.planner("fixed"), _sampled(sampling, num_samples))
    p_value = sequences_p_value(_first_tokens(outputs), exact_distribution(pair.stock, sampling))
    found = f"p {p_value:.2g}, {num_accepted(outputs)} drafts accepted"
    return Check(name, found, f">= {ERROR_RATE:.1g}", p_value >= ERROR_RATE)


def exact_distribution(model: StockModel, sampling: SamplingParams) -> dict[tuple[int, ...], float]:
    """Distribution of the first tokens after the prompt, by the stock model's teacher forcing."""
    distribution = {}
    for sequence in product(range(VOCAB_SIZE), repeat=_NUM_COMPARED):
        logits = model.score((*_PROMPT, *sequence), len(_PROMPT))
        probs = shaped_probs(rows_by_definition(logits, sampling.adjustments, _PROMPT, sequence), sampling)
        distribution[sequence] = float(np.prod([probs[k, token_id] for k, token_id in enumerate(sequence)]))
    return distribution


def _sampled(
    sampling: SamplingParams, num_samples: int, max_new_tokens: int = _NUM_SAMPLED
) -> list[GenerationRequest]:
    """The same prompt under so many seeds."""
    stop = StopParams(max_new_tokens)
    return [
        GenerationRequest(str(seed), _PROMPT, replace(sampling, seed=seed), stop)
        for seed in range(num_samples)
    ]


def _requests(
    settings: Sequence[Setting], rule: Acceptance, per_setting: int, max_new_tokens: int
) -> list[GenerationRequest]:
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(0, VOCAB_SIZE, rng.integers(2, 12)).tolist()) for _ in range(_NUM_PROMPTS)]
    return requests_of(settings, prompts, rule, per_setting=per_setting, max_new_tokens=max_new_tokens)
