"""Addresses, and the options of every channel and server, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Sequence

import grpc

from dspark.errors import ConfigurationError

ChannelOption = tuple[str, int]

# A prefill chunk of features is a few MB, gRPC's default limit is 4 MiB; bounded, so that a broken peer
# cannot make us allocate without end.
MAX_MESSAGE_BYTES = 64 << 20
# Finds a peer that vanished without closing its connection (a paused process, a cut network).
KEEPALIVE_TIME_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 5_000
# A server that restarts is found again at once, not after gRPC's default of up to two minutes.
FIRST_RECONNECT_MS = 100
LONGEST_RECONNECT_MS = 1_000

_SIZE_OPTIONS: tuple[ChannelOption, ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)

CLIENT_OPTIONS: tuple[ChannelOption, ...] = (
    *_SIZE_OPTIONS,
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # The feature stream and idle channels must notice a dead peer too.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", FIRST_RECONNECT_MS),
    ("grpc.min_reconnect_backoff_ms", FIRST_RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", LONGEST_RECONNECT_MS),
    # Each channel its own connection: a bulk transfer of one client must not delay the calls of another.
    ("grpc.use_local_subchannel_pool", 1),
)

SERVER_OPTIONS: tuple[ChannelOption, ...] = (
    *_SIZE_OPTIONS,
    # Without these two the server answers our own keepalive with GOAWAY "too_many_pings".
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
    # A taken port is an error, not a second process that silently gets half of the calls.
    ("grpc.so_reuseport", 0),
)

_TCP = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")
# Linux keeps socket paths in 108 bytes, the last one zero.
_LONGEST_SOCKET_PATH = 107


def open_channel(address: str, options: Sequence[ChannelOption] = CLIENT_OPTIONS) -> grpc.aio.Channel:
    """One channel to a peer, for the life of the process. Call inside the running event loop."""
    return grpc.aio.insecure_channel(address, options=list(options))


def check_address(address: str) -> str:
    """Return the address when gRPC can use it.

    Args:
        address: `unix:/path/of/socket` or `host:port`.

    Raises:
        ConfigurationError: it is neither.
    """
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        if not path:
            raise ConfigurationError("address 'unix:' names no socket; write unix:/path/of/socket")
        if len(path.encode()) > _LONGEST_SOCKET_PATH:
            raise ConfigurationError(
                f"socket path {path!r} is longer than {_LONGEST_SOCKET_PATH} bytes; choose a shorter one"
            )
        return address
    match = _TCP.fullmatch(address)
    if match is None or int(match.group(2)) > 65535:
        raise ConfigurationError(
            f"address {address!r} is not understood; write unix:/path/of/socket or 127.0.0.1:port"
        )
    return address
