"""Throughput against speed per user: so many streams kept busy under each policy, all at the same time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count

import numpy as np
import numpy.typing as npt

from dspark.decoding.types import GenerationRequest
from dspark.evaluation.generation import Engines, LocalDecoder
from dspark.evaluation.requests import make_requests
from dspark.evaluation.tasks import TaskPrompt
from dspark.evaluation.turns import Slice, Turns, TurnWorker
from dspark.rounds.stats import RoundReport

BASELINES = ("off", "fixed")

# Share of a policy's time in which its streams and what it learns settle.
_SETTLING = 0.2
# A turn is shorter than the moments for which a machine is slow, and ends with a round.
_TURN_S = 0.4


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """What one policy reached with so many streams.

    Attributes:
        tokens_per_s: of all streams together, the first token of an output left out.
        user_tokens_per_s: of one stream.
        mean_committed: tokens a request commits in a round.
        mean_verified: drafts of a request that are verified in a round.
        batch_tokens: of a step, the mean.
    """

    tokens_per_s: float
    user_tokens_per_s: float
    mean_committed: float
    mean_verified: float
    batch_tokens: float

    def as_dict(self) -> dict[str, float]:
        """For the report."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A quotient of two speeds, and its standard error as the turns tell it."""

    value: float
    error: float


Floats = npt.NDArray[np.float64]

# Measured turns of each policy, as many of one as of another.
Load = Mapping[str, Sequence[Slice]]


class _TurnDecoder(LocalDecoder):
    """A loop that works in turn with others over the same engines."""

    def __init__(self, engines: Engines, turns: Turns, policy: str) -> None:
        worker = TurnWorker(engines.worker, turns, policy)
        super().__init__(replace(engines, worker=worker), policy=policy)
        self._turns, self._name = turns, policy

    def on_round(self, report: RoundReport) -> None:
        """See `RoundObserver`."""
        super().on_round(report)
        self._turns.end_round(self._name, report)


async def measure_load(
    engines: Engines,
    policies: Sequence[str],
    prompts: Sequence[TaskPrompt],
    *,
    streams: int,
    max_new_tokens: int,
    eos_token_ids: Sequence[int],
    seconds: float,
) -> Load:
    """Keep so many streams busy under each policy until each has had its seconds.

    Args:
        engines: which all policies share, a turn each.
        policies: by name; "fixed" is the full block.
        prompts: decoded greedily over and over, the same for all.
        streams: of each policy.
        max_new_tokens: of an output; the first of a stream is shorter, so that streams do not run in step.
        eos_token_ids: tokens that end an output.
        seconds: of each policy's own time, the settling included.
    """
    turns = Turns(policies, slice_s=_TURN_S, seconds=seconds)
    work: list[asyncio.Future[bool]] = [asyncio.ensure_future(turns.done.wait())]
    async with AsyncExitStack() as stack:
        for policy in policies:
            decoder = await stack.enter_async_context(_TurnDecoder(engines, turns, policy))
            requests = endless_requests(prompts, streams, max_new_tokens, eos_token_ids, label=f"{policy}-")
            work += await stack.enter_async_context(_busy(decoder, requests, streams))
        ended, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        turns.finish()
        for task in ended:
            task.result()
    num_turns = min(map(len, turns.slices.values()))
    first = round(_SETTLING * num_turns)
    return {policy: slices[first:num_turns] for policy, slices in turns.slices.items()}


def endless_requests(
    prompts: Sequence[TaskPrompt],
    streams: int,
    max_new_tokens: int,
    eos_token_ids: Sequence[int],
    *,
    label: str,
) -> Iterator[GenerationRequest]:
    """The prompts over and over; of the first outputs, one a stream, each is longer than the one before."""
    for number in count():
        share = (number + 1) / streams
        length = max_new_tokens if share > 1.0 else math.ceil(share * max_new_tokens)
        prompt = prompts[number % len(prompts)]
        yield from make_requests([prompt], length, eos_token_ids, label=f"{label}{number}-")


@asynccontextmanager
async def _busy(
    decoder: LocalDecoder, requests: Iterator[GenerationRequest], streams: int
) -> AsyncIterator[Sequence[asyncio.Future[bool]]]:
    """So many streams, each of which takes the next request when one has ended; they end by an error only."""

    async def stream() -> bool:
        for request in requests:
            await decoder.generate([request])
        return False

    tasks = [asyncio.ensure_future(stream()) for _ in range(streams)]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def point_of(slices: Sequence[Slice], streams: int) -> LoadPoint:
    """Figures of the turns of one policy."""
    rounds = [report for one in slices for report in one.rounds]
    parts = [(part.num_committed, part.num_scheduled) for report in rounds for part in report.verified]
    committed, verified = (
        np.array(parts, dtype=np.float64).reshape(-1, 2).mean(axis=0) if parts else (0.0, 0.0)
    )
    tokens_per_s = sum(map(_num_tokens, slices)) / sum(one.seconds for one in slices)
    return LoadPoint(
        tokens_per_s=tokens_per_s,
        user_tokens_per_s=tokens_per_s / streams,
        mean_committed=float(committed),
        mean_verified=float(verified),
        batch_tokens=float(np.mean([report.batch_tokens for report in rounds])),
    )


def ratio_of(ours: Sequence[Slice], theirs: Sequence[Slice]) -> Ratio:
    """Tokens per second against tokens per second, at the same number of prompt tokens per token of output.

    Prompts come in lumps, and policies are ahead of each other in the list of prompts. So for each side the
    tokens of its turns are fitted by a x seconds - b x prompt tokens, and both speeds are taken at the mix of
    prompt and output that both have together. The error is the jackknife's: how much the quotient changes
    when turn n of both sides is left out.
    """
    table = np.stack([_table(ours), _table(theirs)])
    num_turns = table.shape[1]
    others = [_quotient(np.delete(table, turn, axis=1)) for turn in range(num_turns)]
    return Ratio(_quotient(table), math.sqrt((num_turns - 1) * float(np.var(others))))


def ratios_of(load: Load, policy: str) -> dict[str, Ratio]:
    """The policy against plain decoding, the full block, and the better of both."""
    plain, fixed = (ratio_of(load[policy], load[name]) for name in BASELINES)
    return {"plain": plain, "fixed": fixed, "better": min(plain, fixed, key=lambda one: one.value)}


def _table(slices: Sequence[Slice]) -> Floats:
    """[T, 3]: tokens, seconds and prompt tokens of each turn."""
    rows = [
        (_num_tokens(one), one.seconds, sum(report.num_prefill_tokens for report in one.rounds))
        for one in slices
    ]
    return np.array(rows, dtype=np.float64)


def _quotient(table: Floats) -> float:
    """Of the speeds of both sides, [2, T, 3]."""
    tokens, _, prompts = table.sum(axis=(0, 1))
    ours, theirs = (_speed(side, prompts / tokens) for side in table)
    return ours / theirs


def _speed(turns: Floats, prompt_share: float) -> float:
    """Tokens per second beside so many prompt tokens for each."""
    tokens, seconds, prompts = turns.T
    (rate, price), *_ = np.linalg.lstsq(np.column_stack([seconds, -prompts]), tokens, rcond=None)
    if price <= 0.0:  # too few prompts to tell
        return float(tokens.sum() / seconds.sum())
    return float(rate / (1.0 + price * prompt_share))


def _num_tokens(one: Slice) -> int:
    return sum(part.num_committed for report in one.rounds for part in report.verified)
