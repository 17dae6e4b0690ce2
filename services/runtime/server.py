"""The only place that creates a gRPC server: health, reflection, statuses, signals, graceful stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection

from dspark.errors import ConfigurationError, ServiceUnavailableError
from dspark.garbage import keep_loaded_objects
from services.runtime.channel import SERVER_OPTIONS, check_address
from services.runtime.interceptor import StatusInterceptor

_log = logging.getLogger(__name__)

if TYPE_CHECKING:  # generic in the stubs only
    Handler = grpc.RpcMethodHandler[Any, Any]

_ALIVE = ""


@dataclass(frozen=True, slots=True)
class Served:
    """What a process serves once it is loaded.

    Attributes:
        register: adds the servicer to a server, as the generated `add_…_to_server` does.
        watched: tasks that run as long as the process; when one ends the process ends with its error.
        drain: ends calls that would last for ever, at the beginning of a graceful stop.
    """

    register: Callable[[Any], None]
    watched: Sequence[asyncio.Task[Any]] = ()
    drain: Callable[[], None] = lambda: None


class ServiceServer:
    """One gRPC server with one service.

    It listens before the service is loaded: `""` is healthy at once, the service's own name only after
    `attach`, and until then its calls are refused with UNAVAILABLE.
    """

    def __init__(self, service_name: str, address: str) -> None:
        self._name = service_name
        self._address = check_address(address)
        self._handlers = _LateHandlers(service_name)
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(
            options=list(SERVER_OPTIONS), interceptors=[StatusInterceptor(f"/{service_name}/")]
        )
        self._server.add_generic_rpc_handlers((self._handlers,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (service_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self) -> str:
        """Listen; returns the address with the port that was bound.

        Raises:
            ConfigurationError: the address cannot be bound.
        """
        try:
            port = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise ConfigurationError(
                f"cannot listen on {self._address}; another process may hold it: "
                "stop that or choose another address"
            ) from error
        await self._health.set(_ALIVE, health_pb2.HealthCheckResponse.SERVING)
        await self._health.set(self._name, health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()
        if self._address.startswith("unix:"):
            return self._address
        return f"{self._address.rpartition(':')[0]}:{port}"

    async def attach(self, register: Callable[[Any], None]) -> None:
        """Serve a loaded servicer."""
        register(self._handlers)
        await self._health.set(self._name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_s: float) -> None:
        """Report NOT_SERVING, refuse new calls, and give running ones `grace_s` to end."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


async def serve(
    service_name: str,
    address: str,
    load: Callable[[], AbstractAsyncContextManager[Served]],
    *,
    grace_s: float = 5.0,
) -> None:
    """Listen, load, serve until SIGTERM or SIGINT, then stop gracefully and leave `load`'s context.

    While it loads, signals have their default effect, as a load cannot be cancelled half-way.

    Raises:
        DsparkError: what `load` raised, or a watched task.
        ConfigurationError: the address cannot be bound.
    """
    server = ServiceServer(service_name, address)
    bound = await server.start()
    _log.info("listening on %s, loading", bound)
    try:
        async with load() as served:
            keep_loaded_objects()
            await server.attach(served.register)
            _log.info("ready %s on %s", service_name, bound)
            try:
                await _until_signal(served.watched)
            finally:
                _log.info("stopping")
                served.drain()
                await server.stop(grace_s)
    finally:
        await server.stop(0)


async def _until_signal(watched: Sequence[asyncio.Task[Any]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    waiter = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait({waiter, *watched}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {waiter}:
            task.result()
            raise ServiceUnavailableError(f"{task.get_name()} ended; the process cannot serve without it")
    finally:
        waiter.cancel()


class _LateHandlers(grpc.GenericRpcHandler):
    """Refuses the calls of a service until its handlers are known. Takes them like a server does."""

    def __init__(self, service_name: str) -> None:
        self._prefix = f"/{service_name}/"
        self._handlers: dict[str, Handler] = {}
        self._refuse: Handler = grpc.unary_unary_rpc_method_handler(self._raise_loading)

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Part of what generated code expects of a server; the registered handlers say the same."""

    def add_registered_method_handlers(self, service_name: str, handlers: Mapping[str, Handler]) -> None:
        """Take the handlers of the service."""
        self._handlers = {f"/{service_name}/{method}": handler for method, handler in handlers.items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """The handler of a call, None where it is not ours."""
        method = handler_call_details.method
        if not self._handlers and method.startswith(self._prefix):
            return self._refuse
        return self._handlers.get(method)

    async def _raise_loading(self, request: object, context: object) -> None:
        raise ServiceUnavailableError("still loading; try again in a moment")
