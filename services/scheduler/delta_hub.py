"""The caller's end of a generation session: one stream to the scheduler, shared by all requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import grpc

from dspark.api.v1 import scheduler_pb2
from dspark.decoding.types import GenerationRequest, TokenDelta
from dspark.errors import DsparkError, InvalidRequestError, PeerLostError, ServiceUnavailableError
from services.runtime.status import translated_errors
from services.scheduler import wire

if TYPE_CHECKING:
    _Stream = grpc.aio.StreamStreamCall[
        scheduler_pb2.GenerateSessionRequest, scheduler_pb2.GenerateSessionResponse
    ]

Event = TokenDelta | DsparkError


class DeltaHub:
    """Hands the deltas of a session to the queues of their requests.

    A broken stream ends every request on it with an error; the next request opens a new one. `PeerLostError`
    says that the stream had begun, so that the scheduler may have taken the request.
    """

    def __init__(self, peer: str, open_stream: Callable[[], _Stream]) -> None:
        self._peer = peer
        self._open_stream = open_stream
        self._session: _Session | None = None

    def start(self, request: GenerationRequest) -> asyncio.Queue[Event]:
        """Send a request; its deltas, or an error as the last event, come through the queue.

        Raises:
            InvalidRequestError: a request with this id is running.
        """
        message = scheduler_pb2.GenerateSessionRequest(start=wire.request_to_pb(request))
        return self._open_session().begin(request.request_id, message)

    def resume(self, request_id: str, received: Sequence[int]) -> asyncio.Queue[Event]:
        """Ask for the rest of a request of a lost session; otherwise as `start`."""
        resumption = scheduler_pb2.Resumption(request_id=request_id, received_token_ids=received)
        message = scheduler_pb2.GenerateSessionRequest(resume=resumption)
        return self._open_session().begin(request_id, message)

    def give_up(self, request_id: str) -> None:
        """Free a request, if it is still running."""
        if self._session is not None:
            self._session.give_up(request_id)

    def _open_session(self) -> _Session:
        if self._session is None or self._session.has_ended:
            self._session = _Session(self._peer, self._open_stream())
        return self._session


class _Session:
    """One stream, a task that reads it and a task that writes it."""

    def __init__(self, peer: str, stream: _Stream) -> None:
        self._peer = peer
        self._stream = stream
        self._has_begun = False
        self._queues: dict[str, asyncio.Queue[Event]] = {}
        self._outgoing: asyncio.Queue[scheduler_pb2.GenerateSessionRequest] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())
        self._writer = asyncio.create_task(self._write())

    @property
    def has_ended(self) -> bool:
        return self._reader.done() or self._stream.done()

    def begin(self, request_id: str, message: scheduler_pb2.GenerateSessionRequest) -> asyncio.Queue[Event]:
        if request_id in self._queues:
            raise InvalidRequestError(
                f"request_id {request_id} is in use; send every request with its own", "request_id"
            )
        queue = self._queues[request_id] = asyncio.Queue()
        self._outgoing.put_nowait(message)
        return queue

    def give_up(self, request_id: str) -> None:
        if self._queues.pop(request_id, None) is not None:
            self._outgoing.put_nowait(scheduler_pb2.GenerateSessionRequest(cancel=request_id))

    async def _write(self) -> None:
        try:
            with translated_errors(self._peer):
                while True:
                    await self._stream.write(await self._outgoing.get())
        except DsparkError:
            # The reader learns the reason, and tells it.
            self._stream.cancel()

    async def _read(self) -> None:
        reason: DsparkError = ServiceUnavailableError(f"{self._peer}: it is shutting down; try again soon")
        try:
            with translated_errors(self._peer):
                while (message := await self._stream.read()) is not grpc.aio.EOF:
                    self._has_begun = True
                    self._hand_out(message)  # type: ignore[arg-type]
        except DsparkError as error:
            reason = error
        finally:
            self._writer.cancel()
            self._stream.cancel()
            if self._has_begun and isinstance(reason, ServiceUnavailableError):
                reason = PeerLostError(str(reason))
            for queue in self._queues.values():
                queue.put_nowait(reason)
            self._queues.clear()

    def _hand_out(self, message: scheduler_pb2.GenerateSessionResponse) -> None:
        for each in message.deltas:
            if (queue := self._queues.get(each.request_id)) is not None:
                delta = wire.request_delta_from_pb(each)
                queue.put_nowait(delta)
                if delta.finish_reason is not None:
                    del self._queues[each.request_id]
        for failure in message.failures:
            if (queue := self._queues.pop(failure.request_id, None)) is not None:
                queue.put_nowait(wire.failure_from_pb(failure))
