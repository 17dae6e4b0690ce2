"""Losslessness of the whole loop over tiny models in float64: same tokens, same distribution."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.sampling import shaped_probs
from dspark.decoding.types import GenerationRequest, SamplingParams, StopParams
from dspark.evaluation.generation import Engines, LocalDecoder
from dspark.evaluation.lossless.definition import rows_by_definition
from dspark.evaluation.lossless.statistics import ERROR_RATE, sequences_p_value
from dspark.evaluation.lossless.tiny import VOCAB_SIZE, load_tiny_engines
from dspark.evaluation.requests import sampling_of
from dspark.evaluation.stock import StockModel
from dspark.evaluation.verdict import Check
from dspark.rounds.planner import FreePlanner, Planner, planner_of
from dspark.rounds.step_ahead import StepAhead
from dspark.scheduling.draft_length import DraftLength
from dspark.scheduling.ranking import Confidences

_NUM_TOKENS = 24
_TEMPERATURE = 1.0
# Tokens of an output whose distribution is compared; the output goes on, so that whole blocks are drafted.
_NUM_COMPARED, _NUM_SAMPLED = 3, 8
_PROMPT = (1, 3, 0, 2)
# Everything that changes single logits, for a vocabulary of five tokens.
_ADJUSTMENTS = LogitAdjustments(
    repetition_penalty=1.3,
    presence_penalty=-0.4,
    frequency_penalty=0.2,
    logit_bias=((1, 0.7), (3, -0.5)),
    min_tokens=2,
    ending_token_ids=(4,),
)
# Of a random drafter, whose confidences are spread around one half.
_THRESHOLD = 0.4

# One adjusted output for so many plain ones.
_ADJUSTED_SHARE = 3


class ChangingPlanner(FreePlanner):
    """Another prefix length for each request and round, whatever the confidences, and so causal."""

    def __init__(self, max_len: int) -> None:
        self._num_lens = max_len + 1
        self._num_rounds = 0

    def num_to_draft(self, num_requests: int, num_cohorts: int = 1) -> int:
        """All in one round, half of them in the next, none in the third."""
        self._num_rounds += 1
        return num_requests * (self._num_rounds % 3) // 2

    def draft_len(self, history: DraftLength, gamma: int) -> int:
        """Another one in every round."""
        return 1 + self._num_rounds % gamma

    def plan(self, step: StepAhead, confidences: Sequence[Confidences]) -> list[int]:
        """By round and place in the batch."""
        return [
            min(len(confidence), (self._num_rounds + 3 * place) % self._num_lens)
            for place, confidence in enumerate(confidences)
        ]


def tiny_checks(directory: Path, *, num_prompts: int, num_samples: int) -> Iterator[Check]:
    """All checks over tiny models, each as it is done.

    Args:
        directory: where the models are written.
        num_prompts: prompts, or seeds, whose outputs are compared token by token.
        num_samples: outputs of the sampling check.

    With adjusted logits it is a third of both.
    """
    engines = load_tiny_engines(directory)
    try:
        for adjustments, kind, share in ((None, "", 1), (_ADJUSTMENTS, "adjusted ", _ADJUSTED_SHARE)):
            for temperature, name in ((0.0, "greedy"), (1.0, "coupled")):
                requests = _requests(num_prompts // share, temperature, adjustments)
                yield asyncio.run(_same_tokens(engines, requests, kind + name))
            sampling = replace(sampling_of(_TEMPERATURE, 0), adjustments=adjustments)
            name = f"tiny models: {kind}distribution by chi-square, rejection"
            stock = StockModel(directory / "target", "float64")
            yield asyncio.run(_same_distribution(name, engines, stock, sampling, num_samples // share))
    finally:
        engines.worker.shutdown()


async def _same_tokens(engines: Engines, requests: Sequence[GenerationRequest], name: str) -> Check:
    plain = await _decode(engines, planner_of("off"), requests)
    num_same = num_accepted = num_outputs = 0
    for planner in _planners(engines):
        for one, other in zip(plain, await _decode(engines, planner, requests), strict=True):
            num_same += one[0] == other[0]
            num_accepted += other[1]
            num_outputs += 1
    found = f"{num_same} of {num_outputs} outputs the same, {num_accepted} drafts accepted"
    # Without accepted drafts nothing was tested.
    is_met = num_same == num_outputs and num_accepted > 0
    return Check(f"tiny models: {name} output without and with drafts", found, "all the same", is_met)


async def _same_distribution(
    name: str, engines: Engines, stock: StockModel, sampling: SamplingParams, num_samples: int
) -> Check:
    stop = StopParams(_NUM_SAMPLED)
    requests = [
        GenerationRequest(str(seed), _PROMPT, replace(sampling, seed=seed), stop)
        for seed in range(num_samples)
    ]
    outputs = await _decode(engines, _planners(engines)[0], requests)
    p_value = sequences_p_value(
        (token_ids[:_NUM_COMPARED] for token_ids, _ in outputs), exact_distribution(stock, sampling)
    )
    found = f"p {p_value:.2g}, {sum(accepted for _, accepted in outputs)} drafts accepted"
    return Check(name, found, f">= {ERROR_RATE:.1g}", p_value >= ERROR_RATE)


def exact_distribution(model: StockModel, sampling: SamplingParams) -> dict[tuple[int, ...], float]:
    """Distribution of the first tokens after the prompt, by the stock model's teacher forcing."""
    distribution = {}
    for sequence in product(range(VOCAB_SIZE), repeat=_NUM_COMPARED):
        logits = model.score((*_PROMPT, *sequence), len(_PROMPT))
        probs = shaped_probs(rows_by_definition(logits, sampling.adjustments, _PROMPT, sequence), sampling)
        distribution[sequence] = float(np.prod([probs[k, token_id] for k, token_id in enumerate(sequence)]))
    return distribution


def _planners(engines: Engines) -> list[Planner]:
    assert engines.drafter is not None
    gamma = engines.drafter.info.gamma
    shipped = [planner_of(name, threshold=_THRESHOLD) for name in ("barrier", "retrospective", "threshold")]
    return [planner_of("fixed", fixed_len=gamma), ChangingPlanner(gamma), *shipped]


def _requests(
    count: int, temperature: float, adjustments: LogitAdjustments | None
) -> list[GenerationRequest]:
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(0, VOCAB_SIZE, rng.integers(2, 12)).tolist()) for _ in range(count)]
    return [
        GenerationRequest(
            str(number),
            prompt,
            replace(sampling_of(temperature, 1000 + number, is_coupled=True), adjustments=adjustments),
            StopParams(_NUM_TOKENS),
        )
        for number, prompt in enumerate(prompts)
    ]


async def _decode(
    engines: Engines, planner: Planner, requests: Sequence[GenerationRequest]
) -> list[tuple[tuple[int, ...], int]]:
    """Output tokens and number of accepted drafts of each request."""
    async with LocalDecoder(engines, policy=planner) as decoder:
        outputs = await decoder.generate(requests)
    return [(one.token_ids, sum(delta.round.num_accepted for delta in one.rounds)) for one in outputs]
