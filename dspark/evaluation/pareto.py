"""Throughput against speed per user: the same prompts, so many streams kept busy, policies taking turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from statistics import median

import numpy as np

from dspark.evaluation.generation import Generation, LocalDecoder
from dspark.evaluation.requests import make_requests
from dspark.evaluation.tasks import TaskPrompt


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """What one policy reached with so many streams.

    Attributes:
        tokens_per_s: of all streams together.
        user_tokens_per_s: of one request from its submission to its end, the median.
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
class Pass:
    """One pass of one policy over the prompts of a load."""

    seconds: float
    outputs: Sequence[Generation]
    # seconds of each output, from submission to end
    waits_s: Sequence[float]
    # (tokens committed, drafts verified) of each request in each round
    parts: Sequence[tuple[int, int]]
    batch_tokens: Sequence[int]


def prompts_of_load(prompts: Sequence[TaskPrompt], streams: int, least: int) -> list[TaskPrompt]:
    """At least `least`, and two for each stream, so that starting and ending streams weigh little."""
    return list(islice(cycle(prompts), max(least, 2 * streams)))


async def run_pass(
    decoder: LocalDecoder,
    prompts: Sequence[TaskPrompt],
    streams: int,
    *,
    max_new_tokens: int,
    eos_token_ids: Sequence[int],
    label: str,
) -> Pass:
    """Decode the prompts greedily, so many at a time: a stream that has ended one takes the next."""
    requests = iter(make_requests(prompts, max_new_tokens, eos_token_ids, label=label))
    outputs: list[Generation] = []
    waits: list[float] = []

    async def stream() -> None:
        for request in requests:
            begun = time.perf_counter()
            outputs.extend(await decoder.generate([request]))
            waits.append(time.perf_counter() - begun)

    num_rounds = len(decoder.rounds)
    started = time.perf_counter()
    await asyncio.gather(*(stream() for _ in range(streams)))
    seconds = time.perf_counter() - started
    reports = [timed.report for timed in decoder.rounds[num_rounds:]]
    return Pass(
        seconds,
        outputs,
        waits,
        [(part.num_committed, part.num_scheduled) for report in reports for part in report.verified],
        [report.batch_tokens for report in reports],
    )


def point_of(passes: Sequence[Pass]) -> LoadPoint:
    """Figures of all passes of one policy under one load."""
    counts = [[len(output.token_ids) for output in one.outputs] for one in passes]
    speeds = [
        count / wait
        for one, own in zip(passes, counts, strict=True)
        for count, wait in zip(own, one.waits_s, strict=True)
    ]
    parts = np.array([part for one in passes for part in one.parts], dtype=np.float64).reshape(-1, 2)
    batches = [size for one in passes for size in one.batch_tokens]
    return LoadPoint(
        tokens_per_s=sum(map(sum, counts)) / sum(one.seconds for one in passes),
        user_tokens_per_s=median(speeds),
        mean_committed=float(parts[:, 0].mean()) if len(parts) else 0.0,
        mean_verified=float(parts[:, 1].mean()) if len(parts) else 0.0,
        batch_tokens=float(np.mean(batches)) if batches else 0.0,
    )


def turns(policies: Sequence[str], number: int) -> Iterator[str]:
    """The policies in another order each time, so that what slows the machine slows all of them alike."""
    first = number % len(policies)
    return iter((*policies[first:], *policies[:first]))


def ratios_of(loads: Mapping[int, Mapping[str, LoadPoint]], policy: str) -> dict[str, float]:
    """The policy against plain decoding, the full block, and the better of both, by number of streams."""
    ratios = {}
    for streams, points in loads.items():
        own, plain, fixed = (points[name].tokens_per_s for name in (policy, "off", "fixed"))
        ratios[f"{policy}_vs_plain, {streams} streams"] = own / plain
        ratios[f"{policy}_vs_fixed, {streams} streams"] = own / fixed
        ratios[f"{policy}_vs_better, {streams} streams"] = own / max(plain, fixed)
    return ratios
