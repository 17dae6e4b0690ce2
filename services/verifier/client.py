"""The verifier as others see it: a typed client with a deadline on every call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import grpc

from dspark.api.v1 import verifier_pb2, verifier_pb2_grpc
from dspark.decoding.types import OpenRequest, PrefillItem, StepResult, VerifierInfo, VerifyItem
from services.runtime.session import ClientSession
from services.runtime.status import translated_errors
from services.verifier import wire

if TYPE_CHECKING:
    from dspark.api.v1.verifier_pb2_grpc import VerifierServiceAsyncStub

    _Session = ClientSession[verifier_pb2.VerifySessionRequest, verifier_pb2.VerifySessionResponse]

_PEER = "verifier"


class VerifierClient:
    """Implements `dspark.rounds.interfaces.Verifier` over one channel.

    Attributes:
        info: what the verifier last said about itself; None before it answered.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        info_timeout_s: float = 2.0,
        open_timeout_s: float = 5.0,
        step_timeout_s: float = 30.0,
        close_timeout_s: float = 5.0,
    ) -> None:
        self._stub: VerifierServiceAsyncStub = verifier_pb2_grpc.VerifierServiceStub(channel)
        self._steps: _Session = ClientSession(_PEER, self._stub.VerifySession)
        self.info: VerifierInfo | None = None
        self._info_timeout_s = info_timeout_s
        self._open_timeout_s = open_timeout_s
        self._step_timeout_s = step_timeout_s
        self._close_timeout_s = close_timeout_s

    async def get_info(self) -> VerifierInfo:
        """Describe the loaded target; see `Verifier.get_info`."""
        with translated_errors(_PEER):
            message = await self._stub.GetVerifierInfo(
                verifier_pb2.GetVerifierInfoRequest(), timeout=self._info_timeout_s
            )
        self.info = info = wire.info_from_pb(message)
        return info

    async def open(self, request: OpenRequest) -> None:
        """Hold a request; see `Verifier.open`."""
        with translated_errors(_PEER):
            await self._stub.Open(wire.open_to_pb(request), timeout=self._open_timeout_s)

    async def step(self, items: Sequence[PrefillItem | VerifyItem]) -> StepResult:
        """One ragged forward pass; see `Verifier.step`."""
        request = verifier_pb2.VerifySessionRequest(step=wire.items_to_pb(items))
        response = await self._steps.call(request, timeout_s=self._step_timeout_s)
        return wire.result_from_pb(response.result)

    async def close(self, request_ids: Sequence[str]) -> None:
        """Free requests; see `Verifier.close`."""
        with translated_errors(_PEER):
            await self._stub.Close(
                verifier_pb2.CloseRequest(request_ids=request_ids), timeout=self._close_timeout_s
            )
