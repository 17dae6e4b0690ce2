"""Server-sent events: how data, comments and the end are written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

T = TypeVar("T")


def event(data: Mapping[str, Any]) -> bytes:
    """One event. JSON escapes every line break, so one data line always suffices."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def with_pauses(items: AsyncGenerator[T, None], pause_s: float) -> AsyncGenerator[T | None, None]:
    """The items, and None after every `pause_s` seconds without one."""
    pending: asyncio.Future[Any] | None = None
    try:
        while True:
            pending = asyncio.ensure_future(_next(items))
            while not (await asyncio.wait([pending], timeout=pause_s))[0]:
                yield None
            found, item = pending.result()
            if not found:
                return
            yield item
    finally:
        if pending is not None and not pending.done():
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
        await items.aclose()


async def _next(items: AsyncIterator[T]) -> tuple[bool, T | None]:
    """Whether there is a next item, and it: a task may not raise StopAsyncIteration."""
    try:
        return True, await anext(items)
    except StopAsyncIteration:
        return False, None


class EventStream(Response):
    """Sends byte chunks as they come. Closes their source however the response ends.

    Unlike Starlette's streaming response it does not read from the client: whoever runs it watches for
    the disconnect (`gateway.disconnect`) and cancels it.
    """

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self.status_code = 200
        self.background = None
        self._chunks = chunks
        # Proxies must neither store nor collect what should be seen at once.
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send headers, chunks and the end."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._chunks.aclose()
