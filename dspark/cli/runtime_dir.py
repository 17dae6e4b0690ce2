"""The private directory of one `dspark up`: sockets and logs, gone when the command ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dspark.errors import ConfigurationError

_PREFIX = "dspark-"
_LOCK = "lock"
# sun_path holds 108 bytes; the longest name we put below the directory is shorter than 20.
_MAX_DIR_LEN = 85


@contextlib.contextmanager
def runtime_dir(parent: Path | None = None) -> Iterator[Path]:
    """Make a directory only we can read and remove it at the end.

    Directories left by commands that were killed are removed first: each is locked while its owner lives.

    Args:
        parent: where to make it; by default the first usable of $XDG_RUNTIME_DIR and the temporary directory.

    Raises:
        ConfigurationError: the path is too long for a unix socket, or cannot be written.
    """
    parent = parent or _default_parent()
    _sweep(parent)
    try:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    except OSError as error:
        raise ConfigurationError(f"no directory can be made in {parent}: {error.strerror}") from error
    lock = _lock(path)
    try:
        if len(os.fsencode(path)) > _MAX_DIR_LEN:
            raise ConfigurationError(f"{parent} is too long for unix sockets; set TMPDIR to a shorter path")
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _default_parent() -> Path:
    candidate = os.environ.get("XDG_RUNTIME_DIR", "")
    if candidate and os.access(candidate, os.W_OK | os.X_OK):
        return Path(candidate)
    return Path(tempfile.gettempdir())


def _lock(path: Path) -> int:
    # Locked before it has its name, so that a sweep never finds it unlocked.
    unnamed = path / f"{_LOCK}.new"
    lock = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(path / _LOCK)
    return lock


def _sweep(parent: Path) -> None:
    for lock_path in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):
            lock = os.open(lock_path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_path.parent, ignore_errors=True)
            finally:
                os.close(lock)
