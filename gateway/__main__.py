"""Composition root: settings, tokenizer, scheduler client, HTTP server."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from pathlib import Path

from dspark.errors import ConfigurationError
from dspark.garbage import keep_loaded_objects
from gateway.app import create_app
from gateway.edge import Edge, SchedulerView, ServedModel
from gateway.keys import load_keys
from gateway.readiness import watch_scheduler
from gateway.resuming import ResumePolicy, ResumingBackend
from gateway.server import open_socket, serve
from gateway.settings import GatewaySettings, read_settings
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import TextTokenizer
from services.runtime.channel import open_channel
from services.runtime.telemetry import configure_logging
from services.scheduler.client import SchedulerClient

_logger = logging.getLogger(__name__)


def main() -> int:
    """Serve until SIGTERM or SIGINT.

    Returns:
        0 after a graceful stop; EX_CONFIG, with the reason as the last line on stderr, when the settings,
        the model directory or the address are wrong.
    """
    try:
        settings = read_settings()
        configure_logging(settings.log_level, "gateway")
        _logger.info("settings %s", settings.describe())
        asyncio.run(_serve(settings))
    except ConfigurationError as error:
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        return os.EX_CONFIG
    return 0


async def _serve(settings: GatewaySettings) -> None:
    model = ServedModel(
        name=settings.served_name,
        tokenizer=TextTokenizer.load(settings.target),
        template=ChatTemplate.load(settings.target),
        aliases=settings.aliases,
        created=int(time.time()),
    )
    keys = load_keys(Path(settings.keys)) if settings.keys else None
    keep_loaded_objects()
    listener = open_socket(settings.host, settings.port)
    async with open_channel(settings.scheduler_address) as channel:
        backend = ResumingBackend(SchedulerClient(channel), ResumePolicy(patience_s=settings.patience_s))
        edge = Edge(model, backend, SchedulerView(backend), settings.options, keys=keys)
        url = f"http://{settings.host}:{listener.getsockname()[1]}"
        watching = asyncio.create_task(watch_scheduler(edge, url))
        try:
            await serve(create_app(edge), listener, shutdown_grace_s=settings.shutdown_grace_s)
        finally:
            watching.cancel()


if __name__ == "__main__":
    sys.exit(main())
