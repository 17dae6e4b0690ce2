"""Many requests over one stream: what a round committed for all of them is one message.

One message for each request and round would cost the processes around the engines more than the round's own
calls, on the cores that the engines need.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from dspark.api.v1 import scheduler_pb2
from dspark.decoding.types import GenerationRequest, TokenDelta
from dspark.errors import DsparkError, EngineError, InvalidRequestError, ServiceUnavailableError
from services.scheduler import wire

_log = logging.getLogger(__name__)


class DeltaStream(Protocol):
    """The deltas of one request; closing it gives the request up."""

    def __aiter__(self) -> AsyncIterator[TokenDelta]:
        """Iterate."""
        ...

    async def aclose(self) -> None:
        """Give the request up, if it has not ended."""
        ...


Submit = Callable[[GenerationRequest], DeltaStream]
Resume = Callable[[str, Sequence[int]], DeltaStream]


class GenerationSession:
    """The scheduler's end of one stream. Every request has a task that moves its deltas to the outbox."""

    def __init__(self, submit: Submit, resume: Resume) -> None:
        self._submit = submit
        self._resume = resume
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._deltas: list[scheduler_pb2.RequestDelta] = []
        self._failures: list[scheduler_pb2.RequestFailure] = []
        self._wake = asyncio.Event()
        self._is_draining = False

    def drain(self) -> None:
        """Take no more requests, and end when those that run have ended."""
        self._is_draining = True
        self._wake.set()

    async def run(
        self, requests: AsyncIterator[scheduler_pb2.GenerateSessionRequest]
    ) -> AsyncGenerator[scheduler_pb2.GenerateSessionResponse, None]:
        """Serve until the caller and all requests have ended; frees those that run if cancelled."""
        reader = asyncio.create_task(self._read(requests))
        try:
            # An empty answer tells the caller that its requests are taken.
            yield scheduler_pb2.GenerateSessionResponse()
            while not self._has_ended(reader):
                await self._wake.wait()
                self._wake.clear()
                if response := self._take():
                    yield response
            if reader.done():
                await reader
        finally:
            for task in (reader, *self._tasks.values()):
                task.cancel()
            await asyncio.gather(reader, *self._tasks.values(), return_exceptions=True)

    async def _read(self, requests: AsyncIterator[scheduler_pb2.GenerateSessionRequest]) -> None:
        try:
            async for message in requests:
                self._do(message)
        finally:
            self._wake.set()

    def _do(self, message: scheduler_pb2.GenerateSessionRequest) -> None:
        action = message.WhichOneof("action")
        if action == "start":
            self._start(message.start.request_id, lambda: self._submit(wire.request_from_pb(message.start)))
        elif action == "resume":
            request_id, received = message.resume.request_id, tuple(message.resume.received_token_ids)
            self._start(request_id, lambda: self._resume(request_id, received))
        elif task := self._tasks.get(message.cancel):
            task.cancel()

    def _has_ended(self, reader: asyncio.Task[None]) -> bool:
        is_idle = not (self._tasks or self._deltas or self._failures)
        return is_idle and (reader.done() or self._is_draining)

    def _start(self, request_id: str, generate: Callable[[], DeltaStream]) -> None:
        if self._is_draining:
            self._fail(request_id, ServiceUnavailableError("the scheduler is shutting down; try again soon"))
        elif request_id in self._tasks:
            self._fail(request_id, InvalidRequestError(f"request_id {request_id} is in use", "request_id"))
        else:
            task = self._tasks[request_id] = asyncio.create_task(self._generate(request_id, generate))
            task.add_done_callback(lambda _: self._note_end(request_id))

    def _note_end(self, request_id: str) -> None:
        del self._tasks[request_id]
        self._wake.set()

    async def _generate(self, request_id: str, generate: Callable[[], DeltaStream]) -> None:
        try:
            async with aclosing(generate()) as deltas:
                async for delta in deltas:
                    self._deltas.append(wire.request_delta_to_pb(request_id, delta))
                    self._wake.set()
        except DsparkError as error:
            self._fail(request_id, error)
        except Exception:  # noqa: BLE001 - one request must not end the others; becomes its error
            _log.exception("request %s failed", request_id)
            self._fail(request_id, EngineError("internal error; see the log of the scheduler"))

    def _fail(self, request_id: str, error: DsparkError) -> None:
        self._failures.append(wire.failure_to_pb(request_id, error))
        self._wake.set()

    def _take(self) -> scheduler_pb2.GenerateSessionResponse | None:
        if not self._deltas and not self._failures:
            return None
        response = scheduler_pb2.GenerateSessionResponse(deltas=self._deltas, failures=self._failures)
        self._deltas, self._failures = [], []
        return response
