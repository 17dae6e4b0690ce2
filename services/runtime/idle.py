"""Notices requests whose scheduler vanished, so that what they hold is freed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

_log = logging.getLogger(__name__)

# Sweeps per time to live: a request outlives its last use by at most a quarter more.
_SWEEPS_PER_TTL = 4


class IdleRequests:
    """Remembers when each request was last used."""

    def __init__(self, ttl_s: float, now: Callable[[], float]) -> None:
        self._ttl_s = ttl_s
        self._now = now
        self._last_use: dict[str, float] = {}

    def touch(self, request_ids: Iterable[str]) -> None:
        """Note that these are in use."""
        self._last_use.update(dict.fromkeys(request_ids, self._now()))

    def forget(self, request_ids: Iterable[str]) -> None:
        """Note that these hold nothing any more."""
        for request_id in request_ids:
            self._last_use.pop(request_id, None)

    def take_idle(self) -> list[str]:
        """Those not used for longer than their time to live; they are forgotten."""
        horizon = self._now() - self._ttl_s
        idle = [request_id for request_id, used in self._last_use.items() if used < horizon]
        self.forget(idle)
        return idle

    async def sweep(self, close: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        """Close idle requests for as long as the process lives."""
        while True:
            await asyncio.sleep(self._ttl_s / _SWEEPS_PER_TTL)
            if idle := self.take_idle():
                _log.warning("freeing %d requests that nobody used for %.0f s", len(idle), self._ttl_s)
                await close(idle)
