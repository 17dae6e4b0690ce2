"""Listens: one socket, one event loop, a clean end on SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from dspark.errors import ConfigurationError


def open_socket(host: str, port: int) -> socket.socket:
    """Bind and listen.

    Raises:
        ConfigurationError: the address is taken or not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on {host}:{port} ({error.strerror or error}); choose another GATEWAY_PORT or"
            " GATEWAY_HOST."
        ) from error


async def serve(app: FastAPI, listener: socket.socket, *, shutdown_grace_s: int) -> None:
    """Serve until SIGTERM or SIGINT; open responses get the grace to end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        await serve_until(stop, app, listener, shutdown_grace_s=shutdown_grace_s)
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


async def serve_until(
    stop: asyncio.Event, app: FastAPI, listener: socket.socket, *, shutdown_grace_s: int
) -> None:
    """Serve until the event is set; open responses get the grace to end, in seconds."""
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=shutdown_grace_s,
        server_header=False,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    server.should_exit = True
    await serving


class _Server(uvicorn.Server):
    """Leaves signals alone. Uvicorn's own handling ends by raising them again, past our clean-up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
