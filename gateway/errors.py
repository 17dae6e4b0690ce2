"""What went wrong, as HTTP status and OpenAI's error object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse, Response

from dspark.errors import (
    ContextTooLongError,
    DeadlineError,
    DsparkError,
    InvalidRequestError,
    OverloadedError,
    ServiceUnavailableError,
    StaleBaseError,
    StaleEpochError,
)

# Seconds after which a client may try again when the error itself does not say.
_RETRY_AFTER_S = 1.0


class UnknownModelError(InvalidRequestError):
    """No model of that name is served."""


class UnknownKeyError(InvalidRequestError):
    """The request brings no API key, or none that is known."""


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """Status, type and code of one class of errors."""

    status: int
    type: str
    code: str | None = None


# Looked up along the classes of an error, so that a subclass needs no entry of its own.
ERROR_KINDS: Mapping[type[DsparkError], ErrorKind] = {
    DsparkError: ErrorKind(500, "server_error", "internal_error"),
    InvalidRequestError: ErrorKind(400, "invalid_request_error"),
    ContextTooLongError: ErrorKind(400, "invalid_request_error", "context_length_exceeded"),
    UnknownModelError: ErrorKind(404, "invalid_request_error", "model_not_found"),
    UnknownKeyError: ErrorKind(401, "invalid_request_error", "invalid_api_key"),
    OverloadedError: ErrorKind(429, "rate_limit_error", "overloaded"),
    ServiceUnavailableError: ErrorKind(503, "server_error", "service_unavailable"),
    StaleBaseError: ErrorKind(503, "server_error", "service_unavailable"),
    StaleEpochError: ErrorKind(503, "server_error", "service_unavailable"),
    DeadlineError: ErrorKind(504, "server_error", "deadline_exceeded"),
}

INTERNAL_ERROR: Mapping[str, Any] = {
    "error": {
        "message": "The server failed on this request; its log says why.",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
}


def kind_of(error: DsparkError) -> ErrorKind:
    """The entry of the nearest class of the error."""
    return next(ERROR_KINDS[c] for c in type(error).__mro__ if c in ERROR_KINDS)


def error_body(error: DsparkError) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = kind_of(error)
    param = error.field or None if isinstance(error, InvalidRequestError) else None
    return {"error": {"message": str(error), "type": kind.type, "param": param, "code": kind.code}}


def error_response(error: DsparkError) -> Response:
    """The response of a failed request. Overload and outage say when to come back."""
    kind = kind_of(error)
    headers = {"www-authenticate": "Bearer"} if kind.status == 401 else {}
    if kind.status in (429, 503):
        seconds = error.retry_after_s if isinstance(error, OverloadedError) else _RETRY_AFTER_S
        headers["retry-after"] = str(max(1, math.ceil(seconds)))
    return JSONResponse(error_body(error), kind.status, headers)


def status_response(
    status: int, message: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """The response for a plain HTTP failure such as 404 or 405."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"message": message or HTTPStatus(status).phrase, "type": kind, "param": None, "code": None}
    return JSONResponse({"error": body}, status, headers)


def validation_error(problems: Sequence[Mapping[str, Any]]) -> InvalidRequestError:
    """The first problem pydantic found, as one sentence that names the field."""
    problem = problems[0]
    if problem["type"] == "json_invalid":
        return InvalidRequestError("The body is not valid JSON.")
    field = field_path(problem["loc"])
    message = str(problem["msg"])
    if not field:
        return InvalidRequestError(f"The body does not fit: {_lowered(message)}; send a JSON object.")
    if problem["type"] == "missing":
        return InvalidRequestError(f"{field} is missing.", field=field)
    return InvalidRequestError(f"{field} is wrong: {_lowered(message)}.", field=field)


def field_path(location: Sequence[str | int]) -> str:
    """A place in the body as its user would write it: `messages[0].content`."""
    path = ""
    for step in location[1:]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]
