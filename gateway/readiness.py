"""Keeps what the scheduler says about itself fresh, and says once on stderr that requests are served."""

from __future__ import annotations

import asyncio
import logging

from gateway.edge import Edge

_logger = logging.getLogger(__name__)


async def watch_scheduler(edge: Edge, url: str, *, loading_poll_s: float = 0.2, poll_s: float = 2.0) -> None:
    """Ask for ever; log one line when the verifier is ready for the first time.

    The scheduler may gain a drafter while it runs, so what it said once is not enough.
    """
    is_announced = False
    while True:
        info = await edge.scheduler.now()
        if info is not None and info.is_verifier_ready and not is_announced:
            drafter = info.drafter_name or "no drafter"
            _logger.info("ready %s serving %s (%s, %s)", url, edge.model.name, info.target_name, drafter)
            is_announced = True
        await asyncio.sleep(poll_s if is_announced else loading_poll_s)
