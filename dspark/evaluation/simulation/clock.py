"""Virtual time: an event loop whose time jumps to the next timer once every task waits."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine
from typing import Any


class _TimeJump(selectors.SelectSelector):
    """Where a loop would block until its next timer, time passes at once instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let `timeout` seconds pass; there are no files to wait for."""
        assert timeout is not None, "every task waits, and for nothing that time brings"
        if timeout > 0.0:
            # One step of the number beyond: a timer counts as due only behind its moment, and years from the
            # start that step is longer than the tolerance of the loop.
            self.now_s = math.nextafter(self.now_s + timeout, math.inf)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop of its own time, in seconds from 0.

    Timers run in the order of their moments, those of one moment in an order that is the same in every run,
    and ready tasks in the order in which they became ready: a run is a function of its input.
    `asyncio.sleep`, `timeout` and `call_later` are virtual as well. A task that waits for a file, a thread or
    a process never hears of it.
    """

    def __init__(self) -> None:
        self._jump = _TimeJump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jump.now_s


class VirtualClock:
    """The time of the running `VirtualTimeLoop`, as the round loop takes it (`dspark.rounds.clock.Clock`)."""

    def now(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Let virtual seconds pass."""
        await asyncio.sleep(seconds)


def run_in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run` on a fresh `VirtualTimeLoop`.

    There is no result: the runner has the task described in full, result included, when it gives the signal
    handler back, which takes as long as the simulation.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main)
