"""Decodes requests with the real round loop over engines in this process, and keeps what every round did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

from dspark.decoding.types import FinishReason, GenerationRequest, TokenDelta
from dspark.engine.draft_loading import load_engine_for, tapped_layers
from dspark.engine.target import TargetEngine
from dspark.garbage import keep_loaded_objects
from dspark.rounds.config import LoopConfig
from dspark.rounds.interfaces import Drafter, RequestStore
from dspark.rounds.local import DraftEngine, EngineWorker, InlineWorker, LocalDrafter, LocalVerifier
from dspark.rounds.loop import RoundLoop
from dspark.rounds.planner import Planner, planner_of
from dspark.rounds.request import RequestStream
from dspark.rounds.stats import LoopStats, RoundReport

# A benchmark must not go on without drafts because a busy machine made one late, nor turn requests away.
PATIENT = LoopConfig(draft_timeout_s=60.0, max_waiting=1_000_000)


@dataclass(frozen=True, slots=True)
class Engines:
    """A target, perhaps a drafter, and what runs both."""

    target: TargetEngine
    drafter: DraftEngine | None
    worker: EngineWorker


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What to load.

    Attributes:
        target: a prepared Hugging Face directory.
        drafter: a drafter directory, `dspark.models.method.PROMPT_LOOKUP`, or None.
        dtype: of the target, as `TargetEngine.load` takes it; the drafter follows.
        pool_tokens: tokens the KV pages of all requests hold together.
        cache_dir: where kernels and measurements are kept.
        with_lookup: whether prompt lookup drafts in place of a model where that was worth more.
    """

    target: Path
    drafter: Path | None
    dtype: str = "auto"
    pool_tokens: int = 16384
    cache_dir: Path | None = None
    with_lookup: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished output, as it came.

    Attributes:
        deltas: the first holds the token that the prefill chose; each later one is a round.
    """

    request_id: str
    deltas: tuple[TokenDelta, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The output."""
        return tuple(token_id for delta in self.deltas for token_id in delta.token_ids)

    @property
    def rounds(self) -> tuple[TokenDelta, ...]:
        """The deltas that rounds brought."""
        return tuple(delta for delta in self.deltas if delta.start > 0 and delta.token_ids)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended."""
        return self.deltas[-1].finish_reason if self.deltas else None


@dataclass(frozen=True, slots=True)
class TimedRound:
    """A round, and the seconds since the one before it ended."""

    report: RoundReport
    wall_s: float


def load_engines(
    plan: EnginePlan, worker: EngineWorker | None = None, *, target: TargetEngine | None = None
) -> Engines:
    """Load target and drafter; without a worker they run on the thread that asks.

    Args:
        plan: what to load.
        worker: where they run.
        target: loaded before, on the same worker, for a drafter that reads the same layers.

    Raises:
        ConfigurationError, ModelMismatchError: as the engines say.
    """
    worker = worker or InlineWorker()
    if target is None:
        target = worker.post(
            TargetEngine.load,
            plan.target,
            dtype=plan.dtype,
            target_layer_ids=tapped_layers(plan.drafter) if plan.drafter else None,
            pool_tokens=plan.pool_tokens,
            cache_dir=plan.cache_dir,
        ).result()
    drafter = None
    if plan.drafter is not None:
        is_half = target.info.dtype == "bfloat16"
        drafter = worker.post(
            load_engine_for,
            plan.drafter,
            plan.target,
            dtype=torch.bfloat16 if is_half else torch.float32,
            pool_tokens=plan.pool_tokens,
            cache_dir=plan.cache_dir,
            with_lookup=plan.with_lookup,
        ).result()
    keep_loaded_objects()
    return Engines(target, drafter, worker)


class LocalDecoder:
    """A round loop over engines of this process, open inside its `async with`."""

    def __init__(
        self,
        engines: Engines,
        *,
        policy: str | Planner,
        wrap: Callable[[Drafter], Drafter] | None = None,
        config: LoopConfig = PATIENT,
        store: RequestStore | None = None,
    ) -> None:
        """Put the loop together.

        Args:
            engines: shared with other decoders that are idle meanwhile.
            policy: as `planner_of` names it ("fixed" is the full block), or a planner.
            wrap: puts something between the loop and the drafter, to watch the blocks.
            config: limits of the loop.
            store: what another decoder left, for `resume`.
        """
        worker = engines.worker
        local = LocalDrafter(engines.drafter, worker) if engines.drafter and policy != "off" else None
        drafter = wrap(local) if wrap is not None and local is not None else local
        gamma = engines.drafter.info.gamma if engines.drafter else 0
        self._loop = RoundLoop(
            drafter,
            LocalVerifier(engines.target, local, worker=worker),
            planner=planner_of(policy, fixed_len=gamma) if isinstance(policy, str) else policy,
            store=store,
            config=config,
        )
        self._loop.tell(self)
        self._task: asyncio.Task[None] | None = None
        self._last_s = 0.0
        self.rounds: list[TimedRound] = []

    async def __aenter__(self) -> LocalDecoder:
        """Start the loop.

        Raises:
            ConfigurationError: the planner cannot work with the measured costs.
            ModelMismatchError: the drafter does not fit the target.
        """
        self._task = asyncio.create_task(self._loop.run())
        ready = asyncio.create_task(self._loop.wait_until_ready())
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            ready.cancel()
            self._task.result()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def stats(self) -> LoopStats:
        """Counters of the loop."""
        return self._loop.stats

    def on_round(self, report: RoundReport) -> None:
        """See `RoundObserver`."""
        now = time.perf_counter()
        self.rounds.append(TimedRound(report, now - self._last_s))
        self._last_s = now

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Decode all requests at once; returns them in order.

        Raises:
            DsparkError: one of them failed.
        """
        self._last_s = time.perf_counter()
        streams = [self._loop.submit(request) for request in requests]
        pairs = zip(requests, streams, strict=True)
        return list(await asyncio.gather(*(_collect(one.request_id, stream) for one, stream in pairs)))

    async def resume(self, received: Mapping[str, Sequence[int]]) -> list[Generation]:
        """Go on with requests of the store, given the output of each so far; returns the rest of each.

        Raises:
            DsparkError: one of them failed.
        """
        streams = [(name, self._loop.resume(name, tokens)) for name, tokens in received.items()]
        return list(await asyncio.gather(*(_collect(name, stream) for name, stream in streams)))


async def _collect(request_id: str, stream: RequestStream | AsyncGenerator[TokenDelta, None]) -> Generation:
    async with aclosing(stream):
        return Generation(request_id, tuple([delta async for delta in stream]))
