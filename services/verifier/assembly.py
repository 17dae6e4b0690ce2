"""Puts the verifier together: target, engine thread, feature stream, servicer."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dspark.api.v1.verifier_pb2_grpc import add_VerifierServiceServicer_to_server
from dspark.errors import ServiceUnavailableError
from dspark.models.config_file import read_config
from dspark.rounds.interfaces import FeatureSink
from dspark.rounds.local import EngineWorker, LocalVerifier, TargetEngine
from services.drafter.client import DrafterClient
from services.runtime.channel import open_channel
from services.runtime.idle import IdleRequests
from services.runtime.peer import wait_for_peer
from services.runtime.server import Served
from services.verifier.feature_push import FeaturePusher
from services.verifier.pairing import TargetShape, check_sizes, layer_check, read_shape
from services.verifier.servicer import VerifierServicer
from services.verifier.settings import VerifierSettings

_log = logging.getLogger(__name__)


@asynccontextmanager
async def load_verifier_service(settings: VerifierSettings) -> AsyncIterator[Served]:
    """Prepare the target, learn which layers the drafter reads, load, and serve.

    Raises:
        ModelMismatchError: the drafter was trained for another target.
        ConfigurationError: a path or setting is wrong.
    """
    worker = EngineWorker("verifier")
    tasks: list[asyncio.Task[None]] = []
    channel = open_channel(settings.drafter_address) if settings.drafter_address else None
    try:
        path = await worker.call(_prepare, settings)
        drafter = DrafterClient(channel) if channel else None
        shape = read_shape(path)
        layer_ids = await _layers_to_tap(settings, drafter, shape)
        engine = await worker.call(_load_engine, settings, path, layer_ids)
        sink: FeatureSink | None = None
        if drafter is not None:
            sink = pusher = FeaturePusher(
                drafter,
                check=layer_check(shape, layer_ids or ()),
                max_queued_bytes=settings.feature_queue_mib << 20,
            )
            tasks.append(asyncio.create_task(pusher.run(), name="the feature stream"))
        idle = IdleRequests(settings.idle_ttl_s, time.monotonic)
        servicer = VerifierServicer(LocalVerifier(engine, sink, worker=worker), idle)
        tasks.append(asyncio.create_task(idle.sweep(servicer.close), name="freeing idle requests"))
        register = functools.partial(add_VerifierServiceServicer_to_server, servicer)
        yield Served(register, watched=tasks, drain=servicer.drain)
    finally:
        for task in tasks:
            task.cancel()
        if channel is not None:
            await channel.close()
        worker.shutdown()


async def _layers_to_tap(
    settings: VerifierSettings, drafter: DrafterClient | None, shape: TargetShape
) -> tuple[int, ...] | None:
    """The layers whose outputs are sent with the token ids; None: nobody wants either."""
    if settings.target_layer_ids or drafter is None:
        return settings.target_layer_ids or None
    if settings.drafter is not None:
        config = read_config(settings.drafter)
        check_sizes(settings.drafter.name, config, shape)
        return config.target_layer_ids
    try:
        info = await wait_for_peer(
            "drafter", settings.drafter_address, drafter.get_info, timeout_s=settings.drafter_wait_s
        )
    except ServiceUnavailableError as error:
        _log.warning("serving without features, so without drafts, until restarted: %s", error)
        return ()
    check_sizes(info.name, info, shape)
    return info.target_layer_ids


def _prepare(settings: VerifierSettings) -> Path:
    # Imported in the engine's thread: torch takes seconds, and health answers meanwhile.
    from dspark.cache import default_cache_dir
    from dspark.models.target import prepare_target

    return prepare_target(settings.target, settings.cache_dir or default_cache_dir())


def _load_engine(settings: VerifierSettings, path: Path, layer_ids: tuple[int, ...] | None) -> TargetEngine:
    import torch

    from dspark.engine.target import TargetEngine as Engine

    if settings.threads:
        torch.set_num_threads(settings.threads)
    return Engine.load(
        path,
        dtype=settings.dtype,
        target_layer_ids=layer_ids,
        pool_tokens=settings.pool_tokens,
        cache_dir=settings.cache_dir,
    )
