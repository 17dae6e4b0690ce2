"""Logs and the metrics port of a process."""

from __future__ import annotations

import logging
import sys

from prometheus_client import start_http_server

from dspark.errors import ConfigurationError

# They log each connection or each call; ours say what matters.
_NOISY = ("grpc", "asyncio", "uvicorn.access", "httpx", "urllib3", "filelock")


def configure_logging(level: str, service: str) -> None:
    """One line for each event, on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {service}: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)


def serve_metrics(port: int, host: str) -> None:
    """Answer Prometheus on `host:port`; port 0 is off.

    Raises:
        ConfigurationError: the port cannot be bound.
    """
    if port == 0:
        return
    try:
        start_http_server(port, addr=host)
    except OSError as error:
        raise ConfigurationError(
            f"METRICS_PORT {port} cannot be bound on {host}: {error.strerror}; choose another port"
        ) from error
