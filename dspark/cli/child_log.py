"""The output of one child: a bounded file, its last lines in memory, and an echo on request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

_TAIL_LINES = 200
# A line longer than this is cut, so that a child without line ends cannot fill our memory.
_MAX_LINE_BYTES = 1 << 16
_MAX_FILE_BYTES = 16 << 20


class ChildLog:
    """Keeps what a child prints, across its restarts. Use as a context manager."""

    def __init__(self, path: Path, echo: Callable[[str], None] | None = None) -> None:
        self.path = path
        self._file: BinaryIO = path.open("wb")
        self._written = 0
        self._echo = echo
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._partial = b""

    def __enter__(self) -> ChildLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def begin(self) -> None:
        """A new run of the child starts: the last lines of the one before no longer count."""
        self._tail.clear()
        self._partial = b""

    def feed(self, chunk: bytes) -> list[str]:
        """Take a piece of output; returns the lines it completed."""
        self._write(chunk)
        *whole, self._partial = (self._partial + chunk).split(b"\n")
        if len(self._partial) > _MAX_LINE_BYTES:
            whole.append(self._partial)
            self._partial = b""
        lines = [raw.decode("utf-8", "replace").rstrip() for raw in whole]
        for line in lines:
            self._tail.append(line)
            if self._echo is not None:
                self._echo(line)
        return lines

    def tail(self, num_lines: int = 20) -> list[str]:
        """The last lines that are not empty, oldest first."""
        lines = [*self._tail, self._partial.decode("utf-8", "replace").rstrip()]
        return [line for line in lines if line][-num_lines:]

    def _write(self, chunk: bytes) -> None:
        if self._written > _MAX_FILE_BYTES:
            self._file.close()
            self.path.replace(self.path.with_suffix(".log.1"))
            self._file = self.path.open("wb")
            self._written = 0
        self._file.write(chunk)
        self._file.flush()
        self._written += len(chunk)
