"""The drafter as others see it: a typed client with a deadline on every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import grpc

from dspark.api.v1 import drafter_pb2, drafter_pb2_grpc
from dspark.decoding.types import DraftBlock, DrafterInfo, DraftRequest, FeatureBatch
from services.drafter import wire
from services.runtime.session import ClientSession
from services.runtime.status import translated_errors

if TYPE_CHECKING:
    from dspark.api.v1.drafter_pb2_grpc import DrafterServiceAsyncStub

    _Call = grpc.aio.StreamUnaryCall[drafter_pb2.PushFeaturesRequest, drafter_pb2.PushFeaturesResponse]
    _Session = ClientSession[drafter_pb2.DraftSessionRequest, drafter_pb2.DraftSessionResponse]

_PEER = "drafter"


class DrafterClient:
    """Implements `dspark.rounds.interfaces.Drafter` over one channel.

    Attributes:
        info: what the drafter last said about itself; None before it answered.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        info_timeout_s: float = 2.0,
        draft_timeout_s: float = 2.0,
        close_timeout_s: float = 2.0,
    ) -> None:
        self._stub: DrafterServiceAsyncStub = drafter_pb2_grpc.DrafterServiceStub(channel)
        self._drafts: _Session = ClientSession(_PEER, self._stub.DraftSession)
        self.info: DrafterInfo | None = None
        self._info_timeout_s = info_timeout_s
        self._draft_timeout_s = draft_timeout_s
        self._close_timeout_s = close_timeout_s

    async def get_info(self) -> DrafterInfo:
        """Describe the loaded drafter; see `Drafter.get_info`."""
        with translated_errors(_PEER):
            message = await self._stub.GetDrafterInfo(
                drafter_pb2.GetDrafterInfoRequest(), timeout=self._info_timeout_s
            )
        self.info = info = wire.info_from_pb(message)
        return info

    async def draft(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """Propose blocks; see `Drafter.draft`."""
        request = drafter_pb2.DraftSessionRequest(draft=wire.requests_to_pb(requests))
        response = await self._drafts.call(request, timeout_s=self._draft_timeout_s)
        return wire.blocks_from_pb(response.draft)

    async def close(self, request_ids: Sequence[str]) -> None:
        """Forget requests; see `Drafter.close`."""
        with translated_errors(_PEER):
            await self._stub.CloseDrafts(
                drafter_pb2.CloseDraftsRequest(request_ids=request_ids), timeout=self._close_timeout_s
            )

    async def open_features(self, on_end: Callable[[], None]) -> FeatureCall:
        """Begin the long-lived feature stream; `on_end` is called when it has ended for whatever reason.

        Raises:
            ServiceUnavailableError: the drafter cannot be reached.
        """
        # No deadline: the call lives as long as both processes; keepalive finds a dead peer.
        call = self._stub.PushFeatures()
        call.add_done_callback(lambda _: on_end())
        with translated_errors(_PEER):
            await call.initial_metadata()
            # Where the call failed, the metadata is empty and the status says why.
            if call.done():
                await call
        return FeatureCall(call)


class FeatureCall:
    """One feature stream. Made by `DrafterClient.open_features`."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    @property
    def is_open(self) -> bool:
        """Whether more can be sent."""
        return not self._call.done()

    async def send(self, batches: Sequence[FeatureBatch]) -> None:
        """Send features; waits while the drafter is slower than we are.

        Raises:
            DsparkError: the stream has ended, with the reason of the drafter.
        """
        with translated_errors(_PEER):
            await self._call.write(wire.features_to_pb(batches))

    async def raise_reason(self) -> None:
        """Raise why the stream ended.

        Raises:
            DsparkError: the reason of the drafter.
        """
        with translated_errors(_PEER):
            await self._call

    def cancel(self) -> None:
        """End the stream."""
        self._call.cancel()
