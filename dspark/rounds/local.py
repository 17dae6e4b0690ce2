"""Drafter and verifier in this process: synchronous engines, each run by one worker thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, Protocol, TypeVar

from dspark.decoding.types import (
    DraftBlock,
    DrafterInfo,
    DraftRequest,
    FeatureBatch,
    OpenRequest,
    PrefillItem,
    StepResult,
    VerifierInfo,
    VerifyItem,
)
from dspark.errors import EngineError
from dspark.rounds.interfaces import FeatureSink

_log = logging.getLogger(__name__)
_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


class DraftEngine(Protocol):
    """A synchronous draft engine."""

    @property
    def info(self) -> DrafterInfo:
        """What it has loaded."""
        ...

    def push(self, batch: FeatureBatch, /) -> None:
        """Take features of committed tokens."""
        ...

    def absorb(self) -> None:
        """Work on the features that have arrived, before a draft needs them."""
        ...

    def draft(self, requests: Sequence[DraftRequest], /) -> Sequence[DraftBlock]:
        """Propose a block for each request that is ready."""
        ...

    def close(self, request_ids: Sequence[str], /) -> None:
        """Forget these requests."""
        ...


class TargetEngine(Protocol):
    """A synchronous target engine."""

    @property
    def info(self) -> VerifierInfo:
        """What it has loaded."""
        ...

    def open(self, request: OpenRequest, /) -> None:
        """Hold a request."""
        ...

    def step(self, items: Sequence[PrefillItem | VerifyItem], /) -> tuple[StepResult, Iterable[FeatureBatch]]:
        """One forward pass and the features of what it committed."""
        ...

    def close(self, request_ids: Sequence[str], /) -> None:
        """Free these requests."""
        ...


class EngineWorker:
    """The one thread that may touch an engine. Two engines may share it."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def post(
        self, function: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> Future[_Result]:
        """Have the thread call a function after all that was asked before; may be used by any thread."""
        return self._executor.submit(function, *args, **kwargs)

    async def call(
        self, function: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> _Result:
        """`post`, and wait for the result.

        Raises:
            EngineError: the engine failed in a way that is not one of ours.
        """
        with _engine_errors():
            return await asyncio.wrap_future(self.post(function, *args, **kwargs))

    def shutdown(self) -> None:
        """Let the thread finish what it was asked and end."""
        self._executor.shutdown(wait=True)


class InlineWorker(EngineWorker):
    """Runs engines on the thread that asks, which has nothing else to do meanwhile.

    A benchmark or an evaluation is such a caller. With a thread of their own the engines and the loop would
    hand the interpreter to each other several times a round.
    """

    def __init__(self) -> None:
        pass

    def post(
        self, function: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> Future[_Result]:
        """Call a function now; the future is done."""
        future: Future[_Result] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the future's
            future.set_exception(error)
        return future

    async def call(
        self, function: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> _Result:
        """Give the other tasks of the event loop a turn, then call the function.

        Raises:
            EngineError: as with a thread.
        """
        await asyncio.sleep(0)
        with _engine_errors():
            return function(*args, **kwargs)

    def shutdown(self) -> None:
        """Nothing is left to end."""


@contextmanager
def _engine_errors() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        raise EngineError(f"the engine failed: {error}") from error


class LocalDrafter:
    """A draft engine as a `Drafter`, and as the `FeatureSink` that feeds it."""

    def __init__(self, engine: DraftEngine, worker: EngineWorker | None = None) -> None:
        self._engine = engine
        self._worker = worker or EngineWorker("drafter")

    async def get_info(self) -> DrafterInfo:
        """See `Drafter`."""
        return self._engine.info

    async def draft(self, requests: Sequence[DraftRequest]) -> Sequence[DraftBlock]:
        """See `Drafter`."""
        return await self._worker.call(self._engine.draft, requests)

    async def close(self, request_ids: Sequence[str]) -> None:
        """See `Drafter`."""
        await self._worker.call(self._engine.close, request_ids)

    def push(self, batches: Sequence[FeatureBatch]) -> None:
        """See `FeatureSink`; the features are in place before any draft asked for later."""
        if batches:
            self._worker.post(self._push_all, batches).add_done_callback(_report_lost)

    def shutdown(self) -> None:
        """End the worker thread."""
        self._worker.shutdown()

    def _push_all(self, batches: Sequence[FeatureBatch]) -> None:
        for batch in batches:
            self._engine.push(batch)
        self._engine.absorb()


class LocalVerifier:
    """A target engine as a `Verifier`; hands features to a sink before the step is answered."""

    def __init__(
        self,
        engine: TargetEngine,
        sink: FeatureSink | None = None,
        *,
        worker: EngineWorker | None = None,
    ) -> None:
        self._engine = engine
        self._sink = sink
        self._worker = worker or EngineWorker("verifier")

    async def get_info(self) -> VerifierInfo:
        """See `Verifier`."""
        return self._engine.info

    async def open(self, request: OpenRequest) -> None:
        """See `Verifier`."""
        await self._worker.call(self._engine.open, request)

    async def step(self, items: Sequence[PrefillItem | VerifyItem]) -> StepResult:
        """See `Verifier`."""
        return await self._worker.call(self._step, items)

    async def close(self, request_ids: Sequence[str]) -> None:
        """See `Verifier`."""
        await self._worker.call(self._engine.close, request_ids)

    def shutdown(self) -> None:
        """End the worker thread."""
        self._worker.shutdown()

    def _step(self, items: Sequence[PrefillItem | VerifyItem]) -> StepResult:
        result, features = self._engine.step(items)
        if self._sink is not None:
            self._sink.push(list(features))
        return result


def _report_lost(future: Future[None]) -> None:
    """Losing features costs speed only, so it is said and borne."""
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.warning("features were lost: %s", error)
