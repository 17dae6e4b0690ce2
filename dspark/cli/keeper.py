"""Keeps one process alive: starts it, notices its death, starts it again, and knows when to give up."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol

from dspark.cli.child_log import ChildLog
from dspark.cli.process import ChildProcess, ProcessSpec

# EX_CONFIG of sysexits.h. A child that ends with it has said why; starting it again cannot help.
CONFIGURATION_EXIT_CODE = 78


class ProcessFailedError(Exception):
    """A process cannot be kept alive.

    Attributes:
        is_configuration: the process itself said what is wrong; the message is its sentence.
        tail: its last lines of output.
    """

    def __init__(self, message: str, *, is_configuration: bool, tail: list[str]) -> None:
        super().__init__(message)
        self.is_configuration = is_configuration
        self.tail = tail


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How long to wait before the next start, and when to stop trying.

    Attributes:
        first_delay_s, longest_delay_s: the wait doubles from the one to the other.
        healthy_after_s: a process that lived this long starts again from the first delay.
        num_first_attempts: starts that may fail before the process was ready for the first time.
    """

    first_delay_s: float = 0.25
    longest_delay_s: float = 10.0
    healthy_after_s: float = 30.0
    num_first_attempts: int = 2

    def delay_s(self, num_failures: int) -> float:
        """Seconds to wait after this many failures in a row, at least one."""
        return min(self.longest_delay_s, self.first_delay_s * 2.0 ** min(num_failures - 1, 30))


class Reporter(Protocol):
    """Hears what happens to the processes."""

    def ready(self, name: str, seconds: float) -> None:
        """The process is ready, this many seconds after it was started."""
        ...

    def died(self, name: str, how: str, delay_s: float) -> None:
        """The process ended by itself and starts again after `delay_s`."""
        ...

    def gave_up(self, name: str, why: str) -> None:
        """A process the system can do without is not started again."""
        ...


class Keeper:
    """Owns one process. `run` ends only by cancellation, by `ProcessFailedError`, or when it gave up."""

    def __init__(
        self, spec: ProcessSpec, log: ChildLog, *, reporter: Reporter, policy: RestartPolicy | None = None
    ) -> None:
        self.spec = spec
        self.was_ready = asyncio.Event()
        self._log = log
        self._policy = policy or RestartPolicy()
        self._reporter = reporter
        self._child: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the child that runs now."""
        child = self._child
        return None if child is None or child.returncode is not None else child.pid

    async def run(self) -> None:
        """Start the process and keep it alive."""
        num_failures = 0
        while True:
            started = time.monotonic()
            code = await self._run_once(started)
            lived_s = time.monotonic() - started
            num_failures = 1 if lived_s >= self._policy.healthy_after_s else num_failures + 1
            if self._gives_up(code, num_failures):
                return
            delay_s = self._policy.delay_s(num_failures)
            self._reporter.died(self.spec.name, describe_exit(code), delay_s)
            await asyncio.sleep(delay_s)

    async def stop(self) -> None:
        """End the child, softly first. Call after `run` was cancelled."""
        if self._child is not None:
            await self._child.stop()

    def kill(self) -> None:
        """End the child at once."""
        if self._child is not None:
            self._child.kill()

    async def _run_once(self, started: float) -> int:
        try:
            child = self._child = ChildProcess.start(self.spec, self._log)
        except OSError as error:
            message = f"{self.spec.name} cannot be started: {error}"
            raise ProcessFailedError(message, is_configuration=True, tail=[]) from error
        ready = asyncio.create_task(child.wait_ready())
        exited = asyncio.create_task(child.wait())
        try:
            await asyncio.wait([ready, exited], return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not exited.done():
                self.was_ready.set()
                self._reporter.ready(self.spec.name, time.monotonic() - started)
            return await exited
        finally:
            ready.cancel()
            exited.cancel()

    def _gives_up(self, code: int, num_failures: int) -> bool:
        """Whether a process that may be missing stays away; raises when the system cannot go on."""
        is_configuration = code == CONFIGURATION_EXIT_CODE
        had_its_chance = self.was_ready.is_set() or num_failures < self._policy.num_first_attempts
        if not is_configuration and had_its_chance:
            return False
        tail = self._log.tail()
        sentence = tail[-1] if is_configuration and tail else describe_exit(code)
        if self.was_ready.is_set() and not self.spec.is_essential:
            self._reporter.gave_up(self.spec.name, sentence)
            return True
        message = f"{self.spec.name}: {sentence}"
        raise ProcessFailedError(message, is_configuration=is_configuration, tail=tail)


def describe_exit(code: int) -> str:
    """Say in words how a process ended."""
    return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
