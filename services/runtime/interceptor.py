"""Applies the status table to every call of a server, unary and streaming."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc

from dspark.errors import DsparkError
from services.runtime.status import details_of, status_of

_log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
if TYPE_CHECKING:  # generic in the stubs only
    Handler = grpc.RpcMethodHandler[Any, Any]


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Turns exceptions of servicers into statuses. What it does not know becomes INTERNAL, text kept back.

    Only methods below `prefix` are touched; health and reflection set their own statuses.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        # A server has a handful of handlers; wrapping them once keeps the cost out of the calls.
        self._wrapped: dict[Handler, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the handler of the call."""
        handler = await continuation(handler_call_details)
        # None: no such method, gRPC answers UNIMPLEMENTED.
        if handler is None or not handler_call_details.method.startswith(self._prefix):
            return handler
        wrapped = self._wrapped.get(handler)
        if wrapped is None:
            wrapped = self._wrapped[handler] = _wrap(handler, handler_call_details.method)
        return wrapped


def _wrap(handler: Any, method: str) -> Handler:
    kinds = {
        "unary_unary": (_guard_unary, grpc.unary_unary_rpc_method_handler),
        "unary_stream": (_guard_stream, grpc.unary_stream_rpc_method_handler),
        "stream_unary": (_guard_unary, grpc.stream_unary_rpc_method_handler),
        "stream_stream": (_guard_stream, grpc.stream_stream_rpc_method_handler),
    }
    kind = next(name for name in kinds if getattr(handler, name) is not None)
    guard, make = kinds[kind]
    behavior = guard(getattr(handler, kind), method)
    return make(behavior, handler.request_deserializer, handler.response_serializer)


def _guard_unary(behavior: Callable[..., Any], method: str) -> Callable[..., Any]:
    @functools.wraps(behavior)
    async def guarded(request: object, context: Context) -> object:
        try:
            return await behavior(request, context)
        except Exception as error:  # noqa: BLE001 - the edge of the process: everything becomes a status
            await _abort(error, method, context)
            return None

    return guarded


def _guard_stream(behavior: Callable[..., Any], method: str) -> Callable[..., Any]:
    @functools.wraps(behavior)
    async def guarded(request: object, context: Context) -> AsyncIterator[object]:
        responses = behavior(request, context)
        try:
            async for response in responses:
                yield response
        except Exception as error:  # noqa: BLE001 - as above
            await _abort(error, method, context)
        finally:
            await responses.aclose()

    return guarded


async def _abort(error: Exception, method: str, context: Context) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, DsparkError):
        await context.abort(status_of(error), str(error), details_of(error))
    if isinstance(error, asyncio.InvalidStateError | grpc.aio.UsageError):
        # The call ended under the handler; there is nobody left to answer.
        _log.debug("%s: the caller is gone", method)
        raise error
    _log.error("%s failed", method, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, f"internal error in {method}; see the log of the server")
