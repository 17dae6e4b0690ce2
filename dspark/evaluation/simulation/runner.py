"""Runs the round loop over simulated engines under one policy and one load, and keeps what happened."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from dspark.decoding.service import Service
from dspark.decoding.types import (
    Acceptance,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    StopParams,
    TokenDelta,
)
from dspark.evaluation.simulation.clock import VirtualClock, run_in_virtual_time
from dspark.evaluation.simulation.curves import Machine
from dspark.evaluation.simulation.engines import SimulatedDrafter, SimulatedVerifier
from dspark.evaluation.simulation.luck import Luck, Story
from dspark.rounds.config import LoopConfig
from dspark.rounds.loop import RoundLoop
from dspark.rounds.planner import planner_of
from dspark.rounds.policies import CohortSetting
from dspark.rounds.stats import RoundReport

# The baseline of the paper's §5.3: a drafter of one token, always verified.
MTP_1 = "mtp-1"
_GREEDY = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)
_PATIENT_S = 1e6
# Requests of a load that keeps so many streams busy, at least: a start and an end alone say nothing.
_REQUESTS_PER_STREAM = 2


@dataclass(frozen=True, slots=True)
class Scenario:
    """What all policies and loads of a study share.

    Attributes:
        machine: whose time passes.
        luck: of the requests.
        threshold: of the policy "threshold".
        max_running: requests that hold pages at once when they come as the trace says.
        cohorts: of requests in flight, as `LoopConfig` says.
        is_shared: drafter and verifier take turns on one machine; else each has one of its own.
        services: tiers and promises of requests by their index in the trace; the default for others.
    """

    machine: Machine
    luck: Luck
    threshold: float = 0.5
    max_running: int = 256
    cohorts: CohortSetting = "1"
    is_shared: bool = True
    services: Mapping[int, Service] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TimedDelta:
    """Tokens of a request as its caller gets them, at a virtual second."""

    at_s: float
    delta: TokenDelta


@dataclass(slots=True)
class Served:
    """One request and all its caller got."""

    index: int
    submitted_s: float
    deltas: list[TimedDelta] = field(default_factory=list)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The output."""
        return tuple(token_id for one in self.deltas for token_id in one.delta.token_ids)

    @property
    def is_complete(self) -> bool:
        """Whether it ended at its length."""
        return bool(self.deltas) and self.deltas[-1].delta.finish_reason is FinishReason.LENGTH


@dataclass(slots=True)
class Observed:
    """What one policy did under one load.

    Attributes:
        rounds: each with the virtual second at which it ended.
        served: in order of submission; with streams kept busy, the last ones are incomplete.
        begin_s: virtual second from which figures count: all streams have their first token by then.
        end_s: virtual second at which the last request that counts ended.
        num_items: parts of requests in all steps.
        real_s: seconds that the simulation took.
    """

    rounds: list[tuple[float, RoundReport]] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    begin_s: float = 0.0
    end_s: float = 0.0
    num_items: int = 0
    real_s: float = 0.0

    def on_round(self, report: RoundReport) -> None:
        """See `RoundObserver`."""
        self.rounds.append((asyncio.get_running_loop().time(), report))


def simulate(scenario: Scenario, policy: str, concurrency: int | None) -> Observed:
    """Serve the trace.

    With a concurrency so many streams are kept busy: each takes the next request of the trace, which begins
    again at its end, until each request, and at least two a stream, has ended. What else runs until then is
    load, not lost: its rounds and tokens count as well. Without a concurrency the requests arrive as the
    trace says, and all of them count.

    Args:
        scenario: machine and luck.
        policy: as `planner_of` names it ("fixed" is the full block), or "mtp-1".
        concurrency: streams kept busy, or None.

    Raises:
        ConfigurationError: no such policy, or the policy cannot work with the machine's curve.
    """
    started = time.perf_counter()
    simulation = _Simulation(scenario, policy, concurrency)
    run_in_virtual_time(simulation.run())
    simulation.observed.real_s = time.perf_counter() - started
    return simulation.observed


class _Simulation:
    """One run."""

    def __init__(self, scenario: Scenario, policy: str, concurrency: int | None) -> None:
        machine, gamma, clock = scenario.machine, scenario.luck.gamma, VirtualClock()
        self._luck = scenario.luck
        self._services = scenario.services
        self._concurrency = concurrency
        self._stories: dict[str, Story] = {}
        self._clock = clock
        device = asyncio.Lock() if scenario.is_shared else None
        self._verifier = SimulatedVerifier(self._stories, machine, clock, device=device)
        num_drafts = 1 if policy == MTP_1 else gamma
        planner_name = "fixed" if policy == MTP_1 else policy
        self._loop = RoundLoop(
            SimulatedDrafter(self._stories, machine, clock, gamma=num_drafts, device=device),
            self._verifier,
            planner=planner_of(planner_name, fixed_len=num_drafts, threshold=scenario.threshold),
            config=LoopConfig(
                max_running=concurrency or scenario.max_running,
                max_waiting=len(scenario.luck.trace),
                prefill_tokens=machine.prefill_tokens,
                prefill_tokens_alone=machine.prefill_tokens_alone,
                cohorts=scenario.cohorts,
                draft_timeout_s=_PATIENT_S,
            ),
            clock=clock,
        )
        self.observed = Observed()
        self._loop.tell(self.observed)

    async def run(self) -> None:
        """Start the loop, put the load on it, stop it; see `observed`."""
        serving = asyncio.create_task(self._loop.run())
        ready = asyncio.create_task(self._loop.wait_until_ready())
        await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            ready.cancel()
            serving.result()
        await (self._replay() if self._concurrency is None else self._keep_busy(self._concurrency))
        self.observed.num_items = self._verifier.num_items
        await _end(serving)

    async def _replay(self) -> None:
        await asyncio.gather(*(self._arrive(index) for index in range(len(self._luck.trace))))
        self.observed.end_s = self._clock.now()

    async def _arrive(self, index: int) -> None:
        trace = self._luck.trace
        await self._clock.sleep(trace[index].arrival_s - trace[0].arrival_s)
        await self._serve(index, str(index))

    async def _keep_busy(self, concurrency: int) -> None:
        numbers = itertools.count()
        num_counted = max(len(self._luck.trace), _REQUESTS_PER_STREAM * concurrency)
        pending = set(range(num_counted))
        all_ended = asyncio.Event()

        def ended(number: int) -> None:
            pending.discard(number)
            if not pending:
                all_ended.set()

        streams = [asyncio.create_task(self._stream(numbers, ended)) for _ in range(concurrency)]
        await all_ended.wait()
        self.observed.end_s = self._clock.now()
        first = self.observed.served[:concurrency]
        self.observed.begin_s = max(one.deltas[0].at_s for one in first)
        for stream in streams:
            await _end(stream)

    async def _stream(self, numbers: Iterator[int], ended: Callable[[int], None]) -> None:
        for number in numbers:
            await self._serve(number % len(self._luck.trace), str(number))
            ended(number)

    async def _serve(self, index: int, request_id: str) -> None:
        """One request from its submission to its end."""
        story = self._luck.story(index)
        self._stories[request_id] = story
        served = Served(index, self._clock.now())
        self.observed.served.append(served)
        prompt = (0,) * story.request.prompt_len
        stop = StopParams(story.request.output_len)
        service = self._services.get(index, Service())
        request = GenerationRequest(request_id, prompt, _GREEDY, stop, service)
        async for delta in self._loop.submit(request):
            served.deltas.append(TimedDelta(self._clock.now(), delta))


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
