"""Lets through only requests that bring a known API key."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import UnknownKeyError, error_response
from gateway.keys import ApiKey, KeyRing

# What probes and scrapers ask; it says nothing of any request.
_OPEN_PATHS = frozenset({"/health", "/metrics", "/version"})


class KeyCheck:
    """Answers 401 before a body is read, and remembers whose request it is."""

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        """Wrap an app."""
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            key = self._known_key(Headers(scope=scope).get("authorization", ""))
        except UnknownKeyError as error:
            await error_response(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["api_key"] = key
        await self._app(scope, receive, send)

    def _known_key(self, authorization: str) -> ApiKey:
        scheme, _, secret = authorization.partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret:
            raise UnknownKeyError("An API key is missing; send it as Authorization: Bearer KEY.")
        key = self._keys.find(secret)
        if key is None:
            raise UnknownKeyError("The API key is not known here; check it.")
        return key


def key_of(request: Request) -> ApiKey | None:
    """The key a request came with; None where no keys are asked for."""
    key: ApiKey | None = getattr(request.state, "api_key", None)
    return key
