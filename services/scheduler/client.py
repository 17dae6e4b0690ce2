"""The scheduler as others see it: a typed client with a deadline on every call and every silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING

import grpc

from dspark.api.v1 import scheduler_pb2, scheduler_pb2_grpc
from dspark.decoding.types import GenerationRequest, TokenDelta
from dspark.errors import DeadlineError, DsparkError
from services.runtime.status import translated_errors
from services.scheduler import wire
from services.scheduler.delta_hub import DeltaHub, Event
from services.scheduler.info import SchedulerInfo

if TYPE_CHECKING:
    from dspark.api.v1.scheduler_pb2_grpc import SchedulerServiceAsyncStub

_PEER = "scheduler"


class SchedulerClient:
    """Generates tokens over one channel; all requests share one stream of it."""

    def __init__(
        self, channel: grpc.aio.Channel, *, info_timeout_s: float = 2.0, silence_timeout_s: float = 300.0
    ) -> None:
        """Make a client.

        Args:
            channel: to the scheduler.
            info_timeout_s: deadline of `get_info`.
            silence_timeout_s: longest wait for the next tokens of a stream, queueing included.
        """
        self._stub: SchedulerServiceAsyncStub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        self._hub = DeltaHub(_PEER, self._stub.GenerateSession)
        self._info_timeout_s = info_timeout_s
        self._silence_timeout_s = silence_timeout_s

    async def get_info(self) -> SchedulerInfo:
        """Describe what is served.

        Raises:
            ServiceUnavailableError, DeadlineError: the scheduler does not answer.
        """
        with translated_errors(_PEER):
            message = await self._stub.GetSchedulerInfo(
                scheduler_pb2.GetSchedulerInfoRequest(), timeout=self._info_timeout_s
            )
        return wire.info_from_pb(message)

    def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenDelta, None]:
        """Deltas of the request in order; closing the iterator gives the request up and frees it.

        Raises:
            InvalidRequestError, OverloadedError: the request was not taken.
            PeerLostError: the scheduler was lost after it may have taken the request; `resume` it.
            ServiceUnavailableError, DeadlineError, EngineError: generation cannot go on.
        """
        return self._deltas(request.request_id, lambda: self._hub.start(request))

    def resume(self, request_id: str, received: Sequence[int]) -> AsyncGenerator[TokenDelta, None]:
        """Deltas of a request of a lost scheduler, behind the tokens received; otherwise as `generate`.

        Raises:
            UnknownRequestError: no state of the request was kept.
            PeerLostError: the scheduler was lost again.
            ServiceUnavailableError: not now; a later attempt may succeed.
            DeadlineError, EngineError: generation cannot go on.
        """
        return self._deltas(request_id, lambda: self._hub.resume(request_id, received))

    async def _deltas(
        self, request_id: str, begin: Callable[[], asyncio.Queue[Event]]
    ) -> AsyncGenerator[TokenDelta, None]:
        events = begin()
        try:
            while True:
                delta = await self._next(events)
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            self._hub.give_up(request_id)

    async def _next(self, events: asyncio.Queue[Event]) -> TokenDelta:
        try:
            async with asyncio.timeout(self._silence_timeout_s):
                event = await events.get()
        except TimeoutError as error:
            raise DeadlineError(
                f"no tokens came for {self._silence_timeout_s:g} s; send the request again"
            ) from error
        if isinstance(event, DsparkError):
            raise event
        return event
