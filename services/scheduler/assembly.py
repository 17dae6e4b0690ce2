"""Puts the scheduler together: clients of its peers, store, round loop, servicer."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from dspark.api.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from dspark.rounds.config import LoopConfig
from dspark.rounds.loop import RoundLoop
from dspark.rounds.planner import planner_of
from services.drafter.client import DrafterClient
from services.runtime.channel import open_channel
from services.runtime.peer import wait_for_peer
from services.runtime.server import Served
from services.scheduler import metrics
from services.scheduler.info import SchedulerInfo, describe
from services.scheduler.servicer import SchedulerServicer
from services.scheduler.settings import SchedulerSettings
from services.scheduler.store import RedisStore
from services.scheduler.store_client import open_store_client
from services.scheduler.store_record import StoreConfig
from services.scheduler.store_schema import owner_epoch
from services.verifier.client import VerifierClient

_log = logging.getLogger(__name__)


@asynccontextmanager
async def load_scheduler_service(settings: SchedulerSettings) -> AsyncIterator[Served]:
    """Wait for the verifier, then run rounds over it and whatever drafter answers.

    Raises:
        ServiceUnavailableError: the verifier did not come up in time.
        ModelMismatchError, ConfigurationError: the parts do not fit.
    """
    planner = planner_of(settings.policy, fixed_len=settings.fixed_len, threshold=settings.threshold)
    async with AsyncExitStack() as stack:
        verifier, drafter = await _open_peers(settings, stack)
        store, writer = _open_store(settings, stack)
        await wait_for_peer(
            "verifier", settings.verifier_address, verifier.get_info, timeout_s=settings.verifier_wait_s
        )
        loop = RoundLoop(
            drafter,
            verifier,
            planner=planner,
            store=store,
            epoch=owner_epoch(time.time_ns() // 1_000_000),
            config=_loop_config(settings),
        )
        loop.tell(metrics.RoundMetrics())
        metrics.expose_loop(lambda: loop.stats)
        metrics.expose_policy(settings.policy, settings.cohorts)
        rounds = asyncio.create_task(loop.run(), name="the round loop")
        stack.push_async_callback(_end, rounds)
        await _first_of(rounds, loop.wait_until_ready)

        def describe_now() -> SchedulerInfo:
            is_store_healthy = store is None or store.is_healthy
            drafter_info = drafter.info if drafter else None
            return describe(loop.stats, verifier.info, drafter_info, is_store_healthy=is_store_healthy)

        servicer = SchedulerServicer(loop.submit, loop.resume, describe_now)
        register = functools.partial(add_SchedulerServiceServicer_to_server, servicer)
        yield Served(register, watched=[rounds, *writer], drain=servicer.drain)


async def _open_peers(
    settings: SchedulerSettings, stack: AsyncExitStack
) -> tuple[VerifierClient, DrafterClient | None]:
    channel = await stack.enter_async_context(open_channel(settings.verifier_address))
    verifier = VerifierClient(channel, step_timeout_s=settings.step_timeout_s)
    if not settings.drafter_address:
        return verifier, None
    channel = await stack.enter_async_context(open_channel(settings.drafter_address))
    return verifier, DrafterClient(channel, draft_timeout_s=settings.draft_timeout_s)


def _open_store(
    settings: SchedulerSettings, stack: AsyncExitStack
) -> tuple[RedisStore | None, list[asyncio.Task[None]]]:
    """The store and the task that writes to it; nothing where no URL is set."""
    url = settings.redis_url.get_secret_value()
    if not url:
        _log.info("no store is set: requests do not outlive this process")
        return None, []
    store = RedisStore(
        open_store_client(url),
        now=time.monotonic,
        config=StoreConfig(running_ttl_s=settings.running_ttl_s, finished_ttl_s=settings.finished_ttl_s),
    )
    metrics.expose_store(store)
    stack.push_async_callback(store.close)
    return store, [asyncio.create_task(store.run(), name="the store's writer")]


def _loop_config(settings: SchedulerSettings) -> LoopConfig:
    return LoopConfig(
        max_running=settings.max_running,
        max_waiting=settings.max_waiting,
        cohorts=settings.cohorts,
        draft_timeout_s=settings.draft_timeout_s,
        patience_s=settings.patience_s,
    )


async def _first_of(task: asyncio.Task[Any], wait: Callable[[], Awaitable[None]]) -> None:
    """Wait, unless the task ends first; then raise why it did."""
    waiter = asyncio.ensure_future(wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()
    if task.done():
        task.result()


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has cleaned up; its error, if any, was raised where it was watched."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
