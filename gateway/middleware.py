"""What every request passes: an id that is echoed, a bound on the body, a count of errors."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import status_response

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestId:
    """Echoes `X-Request-Id`, or makes one where the client sent none that is safe to repeat."""

    def __init__(self, app: ASGIApp, observe_status: Callable[[int], None]) -> None:
        """Wrap an app; `observe_status` learns the status of every response."""
        self._app = app
        self._observe_status = observe_status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
                self._observe_status(message["status"])
            await send(message)

        await self._app(scope, receive, send_with_id)


class BodyLimit:
    """Refuses bodies that are too large, whether or not they announce their length."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            await status_response(413, self._message)(scope, receive, send)
            return
        num_bytes = 0

        async def receive_counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise HTTPException(413, self._message)
            return message

        await self._app(scope, receive_counted, send)

    @property
    def _message(self) -> str:
        return f"The body is larger than {self._max_bytes} bytes; send a shorter one."
