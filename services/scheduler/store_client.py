"""The connection to the store, with options for a path that must never hold up a round."""

from __future__ import annotations

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from dspark.errors import ConfigurationError

# redis-py waits 5 s and tries ten times by default; a round takes milliseconds.
_SOCKET_TIMEOUT_S = 0.3
_CONNECT_TIMEOUT_S = 0.2
_NUM_RETRIES = 1
# One for the writer, one for requests that are taken over.
_MAX_CONNECTIONS = 2


def open_store_client(url: str) -> Redis:
    """A client of the store; it connects at its first command.

    Args:
        url: redis://host:port/db, rediss:// for TLS, or unix:///path/of/socket.

    Raises:
        ConfigurationError: the URL is not understood.
    """
    try:
        return Redis.from_url(
            url,
            socket_timeout=_SOCKET_TIMEOUT_S,
            socket_connect_timeout=_CONNECT_TIMEOUT_S,
            retry=Retry(NoBackoff(), _NUM_RETRIES),
            max_connections=_MAX_CONNECTIONS,
        )
    except ValueError as error:
        raise ConfigurationError(
            f"redis_url is not understood ({error}); write redis://host:port or unix:///path/of/socket"
        ) from error
