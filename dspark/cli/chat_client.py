"""Streams a chat completion over HTTP. Standard library only, so that `dspark chat` starts at once."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from dspark.errors import DsparkError, EngineError, InvalidRequestError, ServiceUnavailableError

# The key for a server that asks for one; not an option, which every user of the machine could read.
API_KEY_VARIABLE = "DSPARK_API_KEY"
_CONNECT_TIMEOUT_S = 5.0
# The first token of a long prompt behind a full queue may take a while.
_READ_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one token, and whether an accepted draft brought it."""

    text: str
    is_accepted: bool


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """What one round added.

    Attributes:
        num_drafted: drafts proposed in the round; 0 for plain decoding.
        num_tokens: tokens of the whole answer, known on the last delta only.
    """

    pieces: tuple[Piece, ...] = ()
    num_drafted: int = 0
    num_accepted: int = 0
    num_tokens: int | None = None


def stream_chat(
    url: str, messages: Sequence[Mapping[str, str]], sampling: Mapping[str, float | int]
) -> Iterator[ChatDelta]:
    """Ask and yield the answer as it comes; closing the iterator cancels the request.

    Raises:
        InvalidRequestError: the URL or a field is wrong, in the server's words.
        ServiceUnavailableError: nobody answers, or the server cannot serve now.
        EngineError: the server failed in the middle of the answer.
    """
    body = {
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_round_details": True,
        **sampling,
    }
    connection = _connect(url)
    try:
        response = _post(connection, url, json.dumps(body).encode())
        for event in read_events(response):
            yield _delta(event)
    except (OSError, http.client.HTTPException) as error:
        raise ServiceUnavailableError(
            f"the connection to {url} broke: {error or type(error).__name__}"
        ) from error
    finally:
        connection.close()


def read_events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON events of a server-sent stream, up to `[DONE]`. Comments are skipped."""
    data: list[str] = []
    for raw in lines:
        line = raw.decode("utf-8").rstrip("\r\n")
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        if line or not data:
            continue
        text = "\n".join(data)
        data = []
        if text == "[DONE]":
            return
        yield json.loads(text)


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequestError(f"--url must look like http://127.0.0.1:8000, not {url!r}", "url")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, _port(parts), timeout=_CONNECT_TIMEOUT_S)


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError as error:
        raise InvalidRequestError(f"--url has no valid port: {error}", "url") from error


def _post(connection: http.client.HTTPConnection, url: str, body: bytes) -> http.client.HTTPResponse:
    base = urlsplit(url).path.rstrip("/").removesuffix("/v1")
    try:
        connection.connect()
    except OSError as error:
        raise ServiceUnavailableError(
            f"nobody answers at {url} ({error.strerror or error}); start a server with dspark up"
        ) from error
    connection.sock.settimeout(_READ_TIMEOUT_S)
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    if key := os.environ.get(API_KEY_VARIABLE):
        headers["Authorization"] = f"Bearer {key}"
    connection.request("POST", f"{base}/v1/chat/completions", body, headers)
    response = connection.getresponse()
    if response.status != 200:
        raise _error_of(response.status, response.read())
    return response


def _error_of(status: int, body: bytes) -> DsparkError:
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the server answered with HTTP status {status}"
    return ServiceUnavailableError(message) if status in (429, 502, 503) else InvalidRequestError(message)


def _delta(event: Mapping[str, Any]) -> ChatDelta:
    if "error" in event:
        raise EngineError(str(event["error"].get("message", event["error"])))
    usage = event.get("usage") or {}
    num_tokens = usage.get("completion_tokens")
    choices = event.get("choices") or []
    if not choices:
        return ChatDelta(num_tokens=num_tokens)
    details = choices[0].get("dspark") or {}
    text = choices[0].get("delta", {}).get("content") or ""
    pieces = tuple(map(Piece, details.get("tokens", ()), details.get("accepted", ())))
    if not pieces and text:  # another server, or one that does not tell
        pieces = (Piece(text, is_accepted=False),)
    return ChatDelta(pieces, details.get("num_drafted", 0), details.get("num_accepted", 0), num_tokens)
