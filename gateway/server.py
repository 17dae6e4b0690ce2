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
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=shutdown_grace_s,
        server_header=False,
    )
    await _Server(config).serve(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends by returning. Uvicorn's own raises the signal once more, which would skip our clean-up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
