"""The verifier's RPCs: convert, call the target, observe, convert back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import grpc

from dspark.api.v1 import verifier_pb2, verifier_pb2_grpc
from dspark.rounds.interfaces import Verifier
from services.runtime.idle import IdleRequests
from services.runtime.session import ServerStreams
from services.verifier import metrics, wire

SERVICE_NAME = "dspark.api.v1.VerifierService"

Context = grpc.aio.ServicerContext[Any, Any]


class VerifierServicer(verifier_pb2_grpc.VerifierServiceServicer):
    """Serves one target, which runs in a thread of its own and hands features to its sink by itself."""

    def __init__(self, target: Verifier, idle: IdleRequests) -> None:
        self._target = target
        self._idle = idle
        self._streams = ServerStreams()

    async def GetVerifierInfo(
        self, request: verifier_pb2.GetVerifierInfoRequest, context: Context
    ) -> verifier_pb2.GetVerifierInfoResponse:
        """Describe the loaded target."""
        return wire.info_to_pb(await self._target.get_info())

    async def Open(self, request: verifier_pb2.OpenRequest, context: Context) -> verifier_pb2.OpenResponse:
        """Hold a request."""
        opened = wire.open_from_pb(request)
        await self._target.open(opened)
        self._idle.touch([opened.request_id])
        return verifier_pb2.OpenResponse()

    async def Verify(
        self, request: verifier_pb2.VerifyRequest, context: Context
    ) -> verifier_pb2.VerifyResponse:
        """One step of the target."""
        items = wire.items_from_pb(request)
        result = await self._target.step(items)
        self._idle.touch(item.request_id for item in items)
        metrics.observe_step(result)
        return wire.result_to_pb(result)

    async def VerifySession(
        self, request_iterator: AsyncIterator[verifier_pb2.VerifySessionRequest], context: Context
    ) -> AsyncIterator[verifier_pb2.VerifySessionResponse]:
        """`Verify` again and again."""

        async def verify(message: verifier_pb2.VerifySessionRequest) -> verifier_pb2.VerifySessionResponse:
            return verifier_pb2.VerifySessionResponse(result=await self.Verify(message.step, context))

        async with aclosing(self._streams.answer(request_iterator, verify)) as responses:
            async for response in responses:
                yield response

    async def Close(self, request: verifier_pb2.CloseRequest, context: Context) -> verifier_pb2.CloseResponse:
        """Free requests."""
        await self.close(list(request.request_ids))
        return verifier_pb2.CloseResponse()

    async def close(self, request_ids: Sequence[str]) -> None:
        """Free requests."""
        self._idle.forget(request_ids)
        await self._target.close(request_ids)

    def drain(self) -> None:
        """End the streams that would keep a graceful stop waiting."""
        self._streams.drain()
