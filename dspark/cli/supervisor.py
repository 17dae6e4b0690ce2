"""Keeps several processes alive together, and ends them in the reverse of the order of their start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from dspark.cli.child_log import ChildLog
from dspark.cli.keeper import Keeper, Reporter, RestartPolicy
from dspark.cli.process import ProcessSpec

EchoFactory = Callable[[str], Callable[[str], None] | None]


class Supervisor:
    """Runs processes side by side. Leaving the context ends all of them.

    Name a process after those it depends on: it is then stopped before them.
    """

    def __init__(
        self,
        log_dir: Path,
        *,
        reporter: Reporter,
        policy: RestartPolicy | None = None,
        echo_for: EchoFactory = lambda name: None,
    ) -> None:
        self._log_dir = log_dir
        self._reporter = reporter
        self._policy = policy
        self._echo_for = echo_for
        self._logs = contextlib.ExitStack()
        self._keepers: dict[str, Keeper] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Supervisor:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def launch(self, specs: Sequence[ProcessSpec]) -> None:
        """Start these processes now, without waiting for them."""
        for spec in specs:
            log = self._logs.enter_context(
                ChildLog(self._log_dir / f"{spec.name}.log", self._echo_for(spec.name))
            )
            keeper = Keeper(spec, log, reporter=self._reporter, policy=self._policy)
            self._keepers[spec.name] = keeper
            self._tasks[spec.name] = asyncio.create_task(keeper.run(), name=spec.name)

    async def wait_ready(self) -> None:
        """Return once every process was ready.

        Raises:
            ProcessFailedError: one of them cannot be started.
        """
        await self._until(self._all_ready())

    async def wait(self, stop: asyncio.Event) -> None:
        """Return once `stop` is set.

        Raises:
            ProcessFailedError: an essential process cannot be kept alive.
        """
        await self._until(stop.wait())

    def pid_of(self, name: str) -> int | None:
        """Process id of the named process, None while it is down."""
        return self._keepers[name].pid

    async def stop(self) -> None:
        """End all processes, the last named first."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        for keeper in reversed(self._keepers.values()):
            await keeper.stop()
        self._logs.close()

    def kill(self) -> None:
        """End all processes at once; `stop` then has nothing to wait for."""
        for keeper in self._keepers.values():
            keeper.kill()

    async def _all_ready(self) -> None:
        for keeper in self._keepers.values():
            await keeper.was_ready.wait()

    async def _until(self, goal: Coroutine[Any, Any, Any]) -> None:
        """Wait for the goal, or raise what made a keeper end."""
        reached = asyncio.create_task(goal)
        tasks = {reached, *self._tasks.values()}
        try:
            while not reached.done():
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            reached.cancel()
