"""Puts the drafter together: engine, its thread, servicer."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dspark.api.v1.drafter_pb2_grpc import add_DrafterServiceServicer_to_server
from dspark.rounds.local import EngineWorker
from services.drafter import metrics
from services.drafter.engine import DraftingEngine
from services.drafter.servicer import DrafterServicer
from services.drafter.settings import DrafterSettings
from services.runtime.idle import IdleRequests
from services.runtime.server import Served


@asynccontextmanager
async def load_drafter_service(settings: DrafterSettings) -> AsyncIterator[Served]:
    """Load the engine and serve it.

    Raises:
        ModelMismatchError: the checkpoint is no drafter, or belongs to another target.
        ConfigurationError: a path or setting is wrong.
    """
    worker = EngineWorker("drafter")
    tasks: list[asyncio.Task[None]] = []
    try:
        engine = await worker.call(_load_engine, settings)
        idle = IdleRequests(settings.idle_ttl_s, time.monotonic)
        servicer = DrafterServicer(engine, worker, idle, feature_wait_s=settings.feature_wait_s)
        metrics.expose_calibration(engine.calibration_errors)
        tasks.append(asyncio.create_task(idle.sweep(servicer.close), name="freeing idle requests"))
        register = functools.partial(add_DrafterServiceServicer_to_server, servicer)
        yield Served(register, watched=tasks, drain=servicer.drain)
    finally:
        for task in tasks:
            task.cancel()
        worker.shutdown()


def _load_engine(settings: DrafterSettings) -> DraftingEngine:
    # Imported in the engine's thread: torch takes seconds, and health answers meanwhile.
    import torch

    from dspark.engine.draft_loading import load_engine_for

    if settings.threads:
        torch.set_num_threads(settings.threads)
    return load_engine_for(
        settings.drafter,
        settings.target,
        dtype=getattr(torch, settings.dtype),
        pool_tokens=settings.pool_tokens,
        refits=settings.refit_calibration,
        cache_dir=settings.cache_dir,
        with_lookup=settings.lookup,
        gamma=settings.gamma,
        allows_int8=settings.allow_int8,
    )
