"""Waiting for another service at start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from dspark.errors import DeadlineError, ServiceUnavailableError

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5

_Info = TypeVar("_Info")


async def wait_for_peer(
    name: str, address: str, ask: Callable[[], Awaitable[_Info]], *, timeout_s: float
) -> _Info:
    """What a peer says about itself, as soon as it has loaded.

    Raises:
        ServiceUnavailableError: it did not answer within `timeout_s`.
    """
    _log.info("waiting for the %s at %s, at most %.0f s", name, address, timeout_s)
    reason = "no answer"
    pause_s = _FIRST_PAUSE_S
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await ask()
                except (ServiceUnavailableError, DeadlineError) as error:
                    reason = str(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    except TimeoutError as error:
        raise ServiceUnavailableError(
            f"the {name} at {address} did not answer within {timeout_s:.0f} s ({reason}); is it running?"
        ) from error
