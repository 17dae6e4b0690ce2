"""Decodes prompts in several passes with real engines, and keeps the rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dspark.decoding.types import DraftBlock, GenerationRequest
from dspark.evaluation.block_log import BlockLog
from dspark.evaluation.calibration_fit import raw_logits
from dspark.evaluation.generation import Engines, Generation, LocalDecoder
from dspark.evaluation.offline.planners import DensePlanner, RawThresholdPlanner
from dspark.evaluation.offline.results import DECIMALS, Pass, PassKind, Rounds, padded
from dspark.evaluation.requests import make_requests
from dspark.evaluation.tasks import TaskPrompt
from dspark.rounds.interfaces import Drafter
from dspark.rounds.planner import Planner
from dspark.scheduling.calibration import SequentialScaling

_KEEP_LOGITS = (PassKind.FULL, PassKind.DENSE)
# A request may hold a page that is not full, and one block more than its output.
_SLACK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """How prompts are decoded.

    Attributes:
        max_new_tokens: no round begins behind so many tokens of an output; the last one may run over.
        streams: prompts side by side.
        seed: of the first prompt, where sampled.
    """

    max_new_tokens: int
    streams: int
    seed: int = 980406


@dataclass(frozen=True, slots=True)
class PassPlan:
    """One pass; see `Pass`."""

    kind: PassKind
    temperature: float
    threshold: float | None = None


def pool_tokens(prompts: Sequence[TaskPrompt], plan: DecodePlan) -> int:
    """Tokens that the KV pages must hold, so that no request has to make room for another."""
    lengths = [len(prompt.token_ids) + plan.max_new_tokens + _SLACK_TOKENS for prompt in prompts]
    return max(sum(lengths[start : start + plan.streams]) for start in range(0, len(lengths), plan.streams))


async def decode_pass(
    engines: Engines,
    prompts: Sequence[TaskPrompt],
    plan: DecodePlan,
    one: PassPlan,
    in_use: SequentialScaling,
) -> Pass:
    """Decode all prompts once.

    Args:
        engines: with a drafter.
        prompts: encoded.
        plan: limits.
        one: the kind of pass.
        in_use: the calibration that the drafter applies, which is taken out of the confidences again.
    """
    assert engines.drafter is not None, "there is nothing to evaluate without a drafter"
    gamma = engines.drafter.info.gamma
    logs: list[BlockLog] = []

    def watch(drafter: Drafter) -> Drafter:
        logs.append(BlockLog(drafter))
        return logs[0]

    requests = _requests(engines, prompts, plan, one)
    outputs: list[Generation] = []
    wrap = watch if one.kind in _KEEP_LOGITS else None
    async with LocalDecoder(engines, policy=_policy(one, in_use), wrap=wrap) as decoder:
        for start in range(0, len(requests), plan.streams):
            outputs += await decoder.generate(requests[start : start + plan.streams])
    blocks = _blocks_of(logs[0], [len(prompt.token_ids) for prompt in prompts]) if logs else None
    rounds = rounds_of(outputs, plan.max_new_tokens, gamma, blocks, in_use)
    if one.kind is PassKind.DENSE:
        assert blocks is not None, "a dense pass has blocks"
        rounds = judged_by_text(rounds, outputs, blocks)
    return Pass(one.kind, one.temperature, rounds, one.threshold)


def _requests(
    engines: Engines, prompts: Sequence[TaskPrompt], plan: DecodePlan, one: PassPlan
) -> list[GenerationRequest]:
    assert engines.drafter is not None, "there is nothing to evaluate without a drafter"
    # Room behind the limit, so that a round which begins at it is a whole one.
    room = 0 if one.kind is PassKind.SERVED else engines.drafter.info.gamma + 1
    return make_requests(
        prompts,
        plan.max_new_tokens + room,
        engines.target.info.eos_token_ids,
        temperature=one.temperature,
        seed=plan.seed,
        is_coupled=one.kind is PassKind.COUPLED,
        label=f"{one.kind.value}-",
    )


# Which block began at a round: of the n-th output, behind so many tokens of it.
BlockOf = Callable[[int, str, int], DraftBlock | None]


def rounds_of(
    outputs: Sequence[Generation],
    max_new_tokens: int,
    gamma: int,
    block_of: BlockOf | None,
    in_use: SequentialScaling,
) -> Rounds:
    """The rounds of outputs that began within the limit, as DeepSpec counts: its `start < max_length`.

    The first token, which the prefill brings, does not count towards DeepSpec's limit.
    """
    rows = [
        (place, output.request_id, delta)
        for place, output in enumerate(outputs)
        for delta in output.rounds
        if delta.start <= max_new_tokens
    ]
    numbers = [
        (place, delta.start, delta.round.num_scheduled, delta.round.num_accepted, len(delta.token_ids))
        for place, _, delta in rows
    ]
    columns = np.array(numbers, dtype=np.int32).reshape(-1, 5)
    logits = None
    if block_of is not None:
        blocks = [block_of(place, request_id, delta.start) for place, request_id, delta in rows]
        confidences = [np.zeros(0, np.float32) if block is None else block.confidence for block in blocks]
        logits = raw_logits(padded(confidences, gamma), in_use).round(DECIMALS)
    prompt, start, scheduled, accepted, committed = columns.T
    return Rounds(prompt, start, scheduled, accepted, committed, logits)


def judged_by_text(rounds: Rounds, outputs: Sequence[Generation], block_of: BlockOf) -> Rounds:
    """Rounds of one token each, as if the block drafted before each had been verified whole, greedily.

    Args:
        rounds: of plain decoding.
        outputs: the texts.
        block_of: what was drafted.
    """
    texts = [output.token_ids for output in outputs]
    scheduled, accepted, committed = [], [], []
    for place, start in zip(rounds.prompt.tolist(), rounds.start.tolist(), strict=True):
        block = block_of(place, outputs[place].request_id, start)
        drafts = () if block is None else tuple(block.token_ids.tolist())
        following = texts[place][start:]
        num_accepted = 0
        while (
            num_accepted < min(len(drafts), len(following))
            and drafts[num_accepted] == following[num_accepted]
        ):
            num_accepted += 1
        scheduled.append(len(drafts))
        accepted.append(num_accepted)
        committed.append(min(num_accepted + 1, len(following)))
    return replace(
        rounds,
        scheduled=np.array(scheduled, np.int32),
        accepted=np.array(accepted, np.int32),
        committed=np.array(committed, np.int32),
    )


def _policy(one: PassPlan, in_use: SequentialScaling) -> str | Planner:
    if one.kind is PassKind.DENSE:
        return DensePlanner()
    if one.kind is PassKind.THRESHOLD:
        assert one.threshold is not None, one
        return RawThresholdPlanner(one.threshold, in_use)
    return "auto" if one.kind is PassKind.SERVED else "fixed"


def _blocks_of(log: BlockLog, prompt_lens: Sequence[int]) -> BlockOf:
    return lambda place, request_id, start: log.block(request_id, prompt_lens[place] + start)
