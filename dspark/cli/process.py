"""One child process: in its own session, tied to our life, its output kept, its group ended with it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dspark.cli.child_log import ChildLog

_PR_SET_PDEATHSIG = 1
# A dead child's pipe may be held open by a grandchild that is just being killed.
_DRAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to run and how to tell that it is ready.

    Attributes:
        env: variables added to our own environment.
        ready: a line of output that matches means "ready".
        is_essential: whether the whole system ends when this process cannot be kept alive.
        grace_s: seconds between SIGTERM and SIGKILL.
    """

    name: str
    argv: tuple[str, ...]
    ready: re.Pattern[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    is_essential: bool = True
    grace_s: float = 5.0


class ChildProcess:
    """A running child. Create it with `start`."""

    def __init__(self, spec: ProcessSpec, popen: subprocess.Popen[bytes], log: ChildLog) -> None:
        self.spec = spec
        self.ready_match: re.Match[str] | None = None
        self._popen = popen
        self._log = log
        self._ready = asyncio.Event()
        self._exited = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    def start(cls, spec: ProcessSpec, log: ChildLog) -> ChildProcess:
        """Start the child. Call it inside the event loop, from the main thread.

        Raises:
            OSError: the program cannot be started.
        """
        log.begin()
        read_fd, write_fd = os.pipe()
        try:
            popen = subprocess.Popen(
                spec.argv,
                stdin=subprocess.DEVNULL,
                stdout=write_fd,
                stderr=write_fd,
                cwd=spec.cwd,
                env={**os.environ, **spec.env},
                start_new_session=True,
                preexec_fn=_dies_with_parent(),
            )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        child = cls(spec, popen, log)
        pump = asyncio.create_task(child._pump_output(read_fd))
        child._tasks = [pump, asyncio.create_task(child._watch_exit(pump))]
        return child

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its session and group."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Exit code; negative signal number when a signal ended it; None while it runs."""
        return self._popen.returncode

    async def wait_ready(self) -> None:
        """Return once a line of output matched `spec.ready`."""
        await self._ready.wait()

    async def wait(self) -> int:
        """Return the exit code once the child, its group and its output are gone."""
        await self._exited.wait()
        assert self._popen.returncode is not None
        return self._popen.returncode

    async def stop(self) -> int:
        """SIGTERM, then after `spec.grace_s` SIGKILL; returns the exit code, also of a child long dead."""
        self._popen.terminate()
        try:
            async with asyncio.timeout(self.spec.grace_s):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()

    def kill(self) -> None:
        """SIGKILL to the child and everything it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _watch_exit(self, pump: asyncio.Task[None]) -> None:
        await _wait_in_thread(self._popen)
        # What the child started goes with it.
        self.kill()
        await asyncio.wait([pump], timeout=_DRAIN_S)
        pump.cancel()
        self._exited.set()

    async def _pump_output(self, read_fd: int) -> None:
        reader = asyncio.StreamReader()
        pipe = os.fdopen(read_fd, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while chunk := await reader.read(65536):
                for line in self._log.feed(chunk):
                    self._note_ready(line)
        finally:
            transport.close()

    def _note_ready(self, line: str) -> None:
        if not self._ready.is_set() and (match := self.spec.ready.search(line)):
            self.ready_match = match
            self._ready.set()


async def _wait_in_thread(popen: subprocess.Popen[bytes]) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def wait() -> None:
        popen.wait()
        # The loop is closed only when the command is over and nobody listens any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, name=f"wait-{popen.pid}", daemon=True).start()
    await ended.wait()


def _dies_with_parent() -> Callable[[], None] | None:
    """Code for the child, between fork and exec, that lets the kernel kill it when we are killed."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # we died before the child asked
            os._exit(1)

    return tie
