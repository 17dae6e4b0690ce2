"""The scheduler's RPCs: convert, hand to the round loop, convert back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Protocol

import grpc

from dspark.api.v1 import scheduler_pb2, scheduler_pb2_grpc
from dspark.decoding.types import GenerationRequest, TokenDelta
from services.scheduler import wire
from services.scheduler.info import SchedulerInfo

SERVICE_NAME = "dspark.api.v1.SchedulerService"

Context = grpc.aio.ServicerContext[Any, Any]


class DeltaStream(Protocol):
    """The deltas of one request; closing it gives the request up."""

    def __aiter__(self) -> AsyncIterator[TokenDelta]:
        """Iterate."""
        ...

    async def aclose(self) -> None:
        """Give the request up, if it has not ended."""
        ...


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Serves one round loop."""

    def __init__(
        self, submit: Callable[[GenerationRequest], DeltaStream], describe: Callable[[], SchedulerInfo]
    ) -> None:
        self._submit = submit
        self._describe = describe

    async def GetSchedulerInfo(
        self, request: scheduler_pb2.GetSchedulerInfoRequest, context: Context
    ) -> scheduler_pb2.GetSchedulerInfoResponse:
        """Describe what is served."""
        return wire.info_to_pb(self._describe())

    async def Generate(
        self, request: scheduler_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[scheduler_pb2.GenerateResponse]:
        """Generate; a call that is cancelled closes the stream, which frees the request within a round."""
        async with aclosing(self._submit(wire.request_from_pb(request))) as deltas:
            async for delta in deltas:
                yield wire.delta_to_pb(delta)
