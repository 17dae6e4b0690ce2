"""Calls one after the other over one long-lived stream: a third of the cost of a unary call each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import grpc

from dspark.errors import DeadlineError, ServiceUnavailableError
from services.runtime.status import translated_errors

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class ClientSession(Generic[_Request, _Response]):
    """The caller's end. One call at a time; a stream that failed is replaced at the next call."""

    def __init__(
        self, peer: str, open_stream: Callable[[], grpc.aio.StreamStreamCall[_Request, _Response]]
    ) -> None:
        self._peer = peer
        self._open_stream = open_stream
        self._stream: grpc.aio.StreamStreamCall[_Request, _Response] | None = None
        self._turn = asyncio.Lock()

    async def call(self, request: _Request, *, timeout_s: float) -> _Response:
        """Send a request and wait for its answer.

        Raises:
            DsparkError: the error of the peer, or that it cannot be reached.
            DeadlineError: no answer within `timeout_s`, the wait for earlier calls included.
        """
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                return await self._exchange(request)
        except TimeoutError as error:
            raise DeadlineError(f"{self._peer}: no answer within {timeout_s:g} s") from error

    async def _exchange(self, request: _Request) -> _Response:
        stream = self._stream
        if stream is None or stream.done():
            stream = self._open_stream()
        # Kept only once the answer is here: a late answer must not be taken for that of the next call.
        self._stream = None
        try:
            with translated_errors(self._peer):
                await stream.write(request)
                response = await stream.read()
        except BaseException:
            stream.cancel()
            raise
        if response is grpc.aio.EOF:
            raise ServiceUnavailableError(f"{self._peer}: it is shutting down")
        self._stream = stream
        return response  # type: ignore[return-value]


class ServerStreams:
    """The server's end of all streams that callers keep open, so that a graceful stop can end them."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        self._is_draining = False

    async def answer(
        self, requests: AsyncIterator[_Request], reply: Callable[[_Request], Awaitable[_Response]]
    ) -> AsyncGenerator[_Response, None]:
        """Answer requests in order until the caller, or a drain, ends the stream."""
        if self._is_draining:
            return
        iterator = aiter(requests)
        while not self._is_draining:
            with self.waiting():
                try:
                    request = await anext(iterator)
                except StopAsyncIteration:
                    return
            yield await reply(request)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the current task as one that a drain may cancel."""
        task = asyncio.current_task()
        assert task is not None, "runs in a task"
        self._waiting.add(task)
        try:
            yield
        finally:
            self._waiting.discard(task)

    def drain(self) -> None:
        """End the streams that wait for their callers; those that work end with their next answer."""
        self._is_draining = True
        for task in self._waiting:
            task.cancel()
