"""The scheduler's RPCs: convert, hand to the round loop, convert back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc

from dspark.api.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.scheduler import wire
from services.scheduler.generation_session import GenerationSession, Resume, Submit
from services.scheduler.info import SchedulerInfo

SERVICE_NAME = "dspark.api.v1.SchedulerService"

Context = grpc.aio.ServicerContext[Any, Any]


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Serves one round loop."""

    def __init__(self, submit: Submit, resume: Resume, describe: Callable[[], SchedulerInfo]) -> None:
        self._submit = submit
        self._resume = resume
        self._describe = describe
        self._sessions: set[GenerationSession] = set()

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

    async def GenerateSession(
        self, request_iterator: AsyncIterator[scheduler_pb2.GenerateSessionRequest], context: Context
    ) -> AsyncIterator[scheduler_pb2.GenerateSessionResponse]:
        """Generate for many requests over one stream."""
        session = GenerationSession(self._submit, self._resume)
        self._sessions.add(session)
        try:
            async with aclosing(session.run(request_iterator)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._sessions.discard(session)

    def drain(self) -> None:
        """Have the sessions end with their last request."""
        for session in self._sessions:
            session.drain()
