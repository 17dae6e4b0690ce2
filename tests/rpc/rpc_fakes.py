"""Fake engines behind the real services, over real sockets."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from dspark.api.v1.drafter_pb2_grpc import add_DrafterServiceServicer_to_server
from dspark.api.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from dspark.api.v1.verifier_pb2_grpc import add_VerifierServiceServicer_to_server
from dspark.decoding.types import DraftBlock, DraftRequest, FeatureBatch
from dspark.rounds.interfaces import FeatureSink
from dspark.rounds.local import EngineWorker
from services.drafter.client import DrafterClient
from services.drafter.servicer import SERVICE_NAME as DRAFTER_NAME
from services.drafter.servicer import DrafterServicer
from services.runtime.channel import open_channel
from services.runtime.idle import IdleRequests
from services.runtime.server import ServiceServer
from services.scheduler.servicer import SERVICE_NAME as SCHEDULER_NAME
from services.scheduler.servicer import SchedulerServicer
from services.verifier.feature_push import FeaturePusher
from services.verifier.servicer import SERVICE_NAME as VERIFIER_NAME
from services.verifier.servicer import VerifierServicer
from tests.fakes import FakeDrafter, FakeVerifier
from tests.feature_batches import feature_batch


def socket_address(folder: Path, name: str) -> str:
    """Relative, since Linux keeps socket paths in 108 bytes and pytest's folders are long."""
    return f"unix:{os.path.relpath(folder / name)}"


async def until(condition: Callable[[], bool]) -> None:
    """Give other tasks turns until a condition holds; the test's own time limit ends a hopeless wait."""
    while not condition():  # noqa: ASYNC110 - what is waited for sets no event
        await asyncio.sleep(0.001)


class FakeDraftEngine(FakeDrafter):
    """`FakeDrafter` as a synchronous engine that learns from feature batches."""

    def __init__(self, verifier: FakeVerifier, **options: int) -> None:
        super().__init__(verifier, **options)
        self.push_error: Exception | None = None
        # called in the engine's thread before each draft
        self.on_draft: Callable[[], None] = lambda: None

    def absorb(self) -> None:
        pass

    def push(self, batch: FeatureBatch) -> None:
        if self.push_error is not None:
            raise self.push_error
        self.learn(batch.request_id, batch.epoch, batch.start, batch.start + len(batch.features))

    def is_ready(self, request: DraftRequest) -> bool:
        return self._is_ready(request)

    def draft(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        self.on_draft()
        self.calls.append(list(requests))
        return [self._block(request) for request in requests if self._is_ready(request)]

    def close(self, request_ids: Sequence[str]) -> None:
        self.closed.update(request_ids)
        for request_id in request_ids:
            self._known.pop(request_id, None)

    def knows(self, request_id: str) -> int:
        """Features held of a request."""
        return self._known.get(request_id, (0, 0))[1]


class FeatureTap:
    """Stands where a `FakeVerifier` has its drafter; sends what it is told as feature batches."""

    def __init__(self, sink: FeatureSink) -> None:
        self.sink = sink

    def learn(self, request_id: str, epoch: int, start: int, end: int) -> None:
        if end > start:
            self.sink.push([feature_batch(request_id, epoch, start, np.zeros((end - start, 8), np.uint16))])


@asynccontextmanager
async def served(name: str, address: str, register: Callable[[Any], None]) -> AsyncIterator[ServiceServer]:
    server = ServiceServer(name, address)
    await server.start()
    await server.attach(register)
    try:
        yield server
    finally:
        await server.stop(0)


@asynccontextmanager
async def drafter_service(
    engine: FakeDraftEngine, address: str, *, feature_wait_s: float = 0.05
) -> AsyncIterator[DrafterServicer]:
    worker = EngineWorker("fake-drafter")
    servicer = DrafterServicer(
        engine, worker, IdleRequests(600, time.monotonic), feature_wait_s=feature_wait_s
    )
    try:
        async with served(
            DRAFTER_NAME, address, lambda server: add_DrafterServiceServicer_to_server(servicer, server)
        ):
            yield servicer
            servicer.drain()
    finally:
        worker.shutdown()


@asynccontextmanager
async def verifier_service(
    target: Any, address: str, idle: IdleRequests | None = None
) -> AsyncIterator[VerifierServicer]:
    servicer = VerifierServicer(target, idle or IdleRequests(600, time.monotonic))
    async with served(
        VERIFIER_NAME, address, lambda server: add_VerifierServiceServicer_to_server(servicer, server)
    ):
        yield servicer


@asynccontextmanager
async def scheduler_service(
    submit: Any, describe: Any, address: str, *, resume: Any = None
) -> AsyncIterator[SchedulerServicer]:
    servicer = SchedulerServicer(submit, resume, describe)
    async with served(
        SCHEDULER_NAME, address, lambda server: add_SchedulerServiceServicer_to_server(servicer, server)
    ):
        yield servicer


@asynccontextmanager
async def running(coroutine: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """A task for the length of a block."""
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def feature_pusher(address: str, **options: Any) -> AsyncIterator[FeaturePusher]:
    """A pusher to the drafter at this address, running."""
    async with AsyncExitStack() as stack:
        channel: grpc.aio.Channel = await stack.enter_async_context(open_channel(address))
        pusher = FeaturePusher(
            DrafterClient(channel), check=options.pop("check", lambda info: None), **options
        )
        await stack.enter_async_context(running(pusher.run()))
        yield pusher
