"""The drafter's RPCs: convert, call the engine in its thread, observe, convert back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import grpc

from dspark.api.v1 import drafter_pb2, drafter_pb2_grpc
from dspark.decoding.types import DraftRequest, FeatureBatch
from dspark.rounds.local import EngineWorker
from services.drafter import metrics, wire
from services.drafter.arrivals import FeatureArrivals
from services.drafter.engine import DraftingEngine, TimedDraft
from services.runtime.idle import IdleRequests
from services.runtime.session import ServerStreams

SERVICE_NAME = "dspark.api.v1.DrafterService"

Context = grpc.aio.ServicerContext[Any, Any]


class DrafterServicer(drafter_pb2_grpc.DrafterServiceServicer):
    """Serves one engine."""

    def __init__(
        self,
        engine: DraftingEngine,
        worker: EngineWorker,
        idle: IdleRequests,
        *,
        feature_wait_s: float = 0.05,
    ) -> None:
        """See `DrafterSettings` for `feature_wait_s`."""
        self._engine = engine
        self._worker = worker
        self._idle = idle
        self._feature_wait_s = feature_wait_s
        self._arrivals = FeatureArrivals()
        self._streams = ServerStreams()

    async def GetDrafterInfo(
        self, request: drafter_pb2.GetDrafterInfoRequest, context: Context
    ) -> drafter_pb2.GetDrafterInfoResponse:
        """Describe the loaded drafter."""
        return wire.info_to_pb(self._engine.info)

    async def Draft(self, request: drafter_pb2.DraftRequest, context: Context) -> drafter_pb2.DraftResponse:
        """Propose one block for every request that is ready, after a bounded wait for features."""
        requests = wire.requests_from_pb(request)
        self._idle.touch(each.request_id for each in requests)
        started = time.perf_counter()
        draft = await self._draft_when_complete(requests)
        metrics.observe_draft(draft, num_requests=len(requests), total_s=time.perf_counter() - started)
        return wire.blocks_to_pb(draft.blocks, draft.draft_ns)

    async def DraftSession(
        self, request_iterator: AsyncIterator[drafter_pb2.DraftSessionRequest], context: Context
    ) -> AsyncIterator[drafter_pb2.DraftSessionResponse]:
        """`Draft` again and again."""

        async def draft(message: drafter_pb2.DraftSessionRequest) -> drafter_pb2.DraftSessionResponse:
            return drafter_pb2.DraftSessionResponse(draft=await self.Draft(message.draft, context))

        async with aclosing(self._streams.answer(request_iterator, draft)) as responses:
            async for response in responses:
                yield response

    async def PushFeatures(
        self, request_iterator: AsyncIterator[drafter_pb2.PushFeaturesRequest], context: Context
    ) -> drafter_pb2.PushFeaturesResponse:
        """Take features for as long as the verifier sends them."""
        # Tells the verifier at once that the stream stands.
        await context.send_initial_metadata(())
        with self._streams.waiting():
            async for message in request_iterator:
                batches = wire.features_from_pb(message)
                await self._worker.call(self._push, batches)
                self._idle.touch(batch.request_id for batch in batches)
                self._arrivals.note(batches)
                metrics.observe_features(batches)
        return drafter_pb2.PushFeaturesResponse()

    async def CloseDrafts(
        self, request: drafter_pb2.CloseDraftsRequest, context: Context
    ) -> drafter_pb2.CloseDraftsResponse:
        """Forget requests."""
        self._idle.forget(request.request_ids)
        await self.close(list(request.request_ids))
        return drafter_pb2.CloseDraftsResponse()

    async def close(self, request_ids: Sequence[str]) -> None:
        """Forget requests, also what is known about their features."""
        self._arrivals.forget(request_ids)
        await self._worker.call(self._engine.close, request_ids)

    def drain(self) -> None:
        """End the streams that would keep a graceful stop waiting."""
        self._streams.drain()

    async def _draft_when_complete(self, requests: Sequence[DraftRequest]) -> TimedDraft:
        """Draft as soon as no features are on their way, or when the wait is over."""
        deadline = time.monotonic() + self._feature_wait_s
        while True:
            arrival = self._arrivals.next_arrival()
            answer = await self._worker.call(self._draft_if_complete, requests)
            if isinstance(answer, TimedDraft):
                return answer
            awaited = [request for request in answer if self._arrivals.is_expected(request)]
            if not awaited or not await _is_set_by(arrival, deadline):
                self._arrivals.give_up(awaited)
                return await self._worker.call(self._draft, requests)

    def _draft_if_complete(self, requests: Sequence[DraftRequest]) -> TimedDraft | list[DraftRequest]:
        """Blocks of all requests, or those requests that lack features."""
        lacking = [request for request in requests if not self._engine.is_ready(request)]
        return lacking or self._draft(requests)

    def _draft(self, requests: Sequence[DraftRequest]) -> TimedDraft:
        started = time.perf_counter_ns()
        blocks = self._engine.draft(requests)
        return TimedDraft(blocks, time.perf_counter_ns() - started)

    def _push(self, batches: Sequence[FeatureBatch]) -> None:
        for batch in batches:
            self._engine.push(batch)
        self._engine.absorb()


async def _is_set_by(event: asyncio.Event, deadline: float) -> bool:
    """Wait for an event until `time.monotonic()` reaches the deadline."""
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            await event.wait()
    except TimeoutError:
        return False
    return True
