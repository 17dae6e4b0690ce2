"""Says once on stderr that requests are being served, and who serves them."""

from __future__ import annotations

import asyncio
import logging

from gateway.edge import Edge

_logger = logging.getLogger(__name__)

# Seconds between two questions while the model loads.
_POLL_S = 0.2


async def report_ready(edge: Edge, url: str, poll_s: float = _POLL_S) -> None:
    """Wait until the scheduler answers and its verifier is ready, then log one line."""
    while (info := await edge.scheduler.now()) is None or not info.is_verifier_ready:
        await asyncio.sleep(poll_s)
    drafter = info.drafter_name or "no drafter"
    _logger.info("ready %s serving %s (%s, %s)", url, edge.model.name, info.target_name, drafter)
