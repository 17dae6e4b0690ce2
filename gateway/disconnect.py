"""Runs a response only while its client is there, so that a closed connection frees the request at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dspark.errors import DsparkError
from gateway.errors import error_response


class WhileConnected(Response):
    """Makes and sends a response in one task, and cancels that task when the client goes away.

    Both halves matter: a client may leave while the answer is still computed (a response that is not
    streamed, or a stream that waits for its first token) or while it is being sent.
    """

    def __init__(self, make: Callable[[], Awaitable[Response]]) -> None:
        """Take the function that makes the response; a DsparkError it raises becomes an error response."""
        self.background = None
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run until the response is sent or the client is gone."""
        work = asyncio.create_task(self._respond(scope, receive, send))
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
        if not work.cancelled():
            work.result()

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._make()
        except DsparkError as error:
            response = error_response(error)
        await response(scope, receive, send)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
