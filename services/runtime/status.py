"""The one table between our errors and gRPC status codes, and the way back.

A code says what a stranger needs to know. Two classes may share one, so the class name and its details travel
beside it as trailing metadata, and a caller of ours catches the class that the engine raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import grpc

from dspark import errors
from dspark.errors import DsparkError, InvalidRequestError, OverloadedError

Metadata = tuple[tuple[str, str | bytes], ...]

STATUS_BY_ERROR: dict[type[DsparkError], grpc.StatusCode] = {
    errors.InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ContextTooLongError: grpc.StatusCode.OUT_OF_RANGE,
    errors.ModelMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ConfigurationError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnknownRequestError: grpc.StatusCode.NOT_FOUND,
    errors.StaleBaseError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StaleEpochError: grpc.StatusCode.ABORTED,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ServiceUnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.PeerLostError: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.EngineError: grpc.StatusCode.INTERNAL,
    errors.DsparkError: grpc.StatusCode.INTERNAL,
}

# For a status that no server of ours set: the transport, a proxy, or a server that does not know the call.
_ERROR_BY_STATUS: dict[grpc.StatusCode, type[DsparkError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: errors.ContextTooLongError,
    grpc.StatusCode.NOT_FOUND: errors.UnknownRequestError,
    grpc.StatusCode.FAILED_PRECONDITION: errors.StaleBaseError,
    grpc.StatusCode.ABORTED: errors.StaleEpochError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.OverloadedError,
    grpc.StatusCode.UNAVAILABLE: errors.ServiceUnavailableError,
    # The peer gave the call up: it is shutting down.
    grpc.StatusCode.CANCELLED: errors.ServiceUnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineError,
    grpc.StatusCode.UNIMPLEMENTED: errors.ModelMismatchError,
}

_CLASS_KEY = "dspark-error"
_FIELD_KEY = "dspark-field-bin"
_RETRY_KEY = "dspark-retry-after-s"


def status_of(error: DsparkError) -> grpc.StatusCode:
    """The code of an error: that of the nearest class along its MRO."""
    return next(STATUS_BY_ERROR[kind] for kind in type(error).__mro__ if kind in STATUS_BY_ERROR)


def details_of(error: DsparkError) -> Metadata:
    """Trailing metadata that lets a client rebuild the error."""
    metadata: list[tuple[str, str | bytes]] = [(_CLASS_KEY, type(error).__name__)]
    if isinstance(error, InvalidRequestError) and error.field:
        metadata.append((_FIELD_KEY, error.field.encode()))
    if isinstance(error, OverloadedError):
        metadata.append((_RETRY_KEY, repr(error.retry_after_s)))
    return tuple(metadata)


def error_of(
    code: grpc.StatusCode, message: str, metadata: Iterable[tuple[str, str | bytes]] = ()
) -> DsparkError:
    """The error behind a status: the very class that was raised, else the one that fits the code."""
    details = dict(metadata)
    kind = class_named(details.get(_CLASS_KEY)) or _ERROR_BY_STATUS.get(code, errors.EngineError)
    field = details.get(_FIELD_KEY, b"")
    text = field.decode(errors="replace") if isinstance(field, bytes) else field
    return make_error(kind, message, field=text, retry_after_s=_seconds(details.get(_RETRY_KEY)))


def make_error(
    kind: type[DsparkError], message: str, *, field: str = "", retry_after_s: float = 1.0
) -> DsparkError:
    """An error of a class with those details that the class knows."""
    if issubclass(kind, InvalidRequestError):
        return kind(message, field)
    if issubclass(kind, OverloadedError):
        return kind(message, retry_after_s)
    return kind(message)


def class_named(name: str | bytes | None) -> type[DsparkError] | None:
    """The class of this name in the table."""
    return next((kind for kind in STATUS_BY_ERROR if kind.__name__ == name), None)


# What grpc.aio makes of a message it could not send, because the other side has just ended the stream.
_SEND_FAILED = "Internal error from Core"


@contextmanager
def translated_errors(peer: str) -> Iterator[None]:
    """Turn what a call to `peer` raises into our errors.

    Raises:
        DsparkError: the error of the peer, or that it cannot be reached.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        metadata = _pairs(error.trailing_metadata())
        message = error.details() or error.code().name
        if message == _SEND_FAILED:
            raise errors.ServiceUnavailableError(f"{peer}: the call has ended") from error
        if _CLASS_KEY not in dict(metadata):
            message = f"{peer}: {message}"
        raise error_of(error.code(), message, metadata) from error
    except (grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError) as error:
        raise errors.ServiceUnavailableError(f"{peer}: the call has ended") from error


def _pairs(metadata: object) -> list[tuple[str, str | bytes]]:
    if not isinstance(metadata, Iterable):
        return []
    return [(str(key), value) for key, value in metadata]


def _seconds(text: str | bytes | None) -> float:
    try:
        return float(text) if text is not None else 1.0
    except ValueError:
        return 1.0
