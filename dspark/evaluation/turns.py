"""Several round loops over the same engines, each at work for a moment in turn.

A machine that others share is a tenth faster or slower from one minute to the next. Loops that swap within
a second or two are all measured on the same machine, however long the measurement takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from dspark.rounds.local import EngineWorker
from dspark.rounds.stats import RoundReport

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


@dataclass(slots=True)
class Slice:
    """One turn: seconds on the clock, and the rounds that were run in it."""

    seconds: float = 0.0
    rounds: list[RoundReport] = field(default_factory=list)


class Turns:
    """Lets one loop at a time work, from the beginning of a round to the end of a later one."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        slice_s: float,
        seconds: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Make turns.

        Args:
            names: of the loops, in the order of their turns.
            slice_s: least seconds of a turn.
            seconds: of its own time that every loop gets before `done` is set.
            clock: in seconds.
        """
        self.done = asyncio.Event()
        self.slices: dict[str, list[Slice]] = {name: [] for name in names}
        self._names, self._slice_s, self._seconds, self._clock = names, slice_s, seconds, clock
        self._gates = {name: asyncio.Event() for name in names}
        self._current = Slice()
        self._is_over = False
        self._hand_to(names[0])

    async def take(self, name: str) -> None:
        """Wait for the turn of this loop."""
        await self._gates[name].wait()

    def end_round(self, name: str, report: RoundReport) -> None:
        """Take note of a round that the loop has ended; once its time is over it is the next one's turn."""
        if self._is_over:
            return
        self._current.rounds.append(report)
        now = self._clock()
        if now - self._since_s >= self._slice_s:
            self._current.seconds = now - self._since_s
            self.slices[name].append(self._current)
            self._gates[name].clear()
            self._hand_to(self._names[(self._names.index(name) + 1) % len(self._names)])
            spent_s = [sum(one.seconds for one in slices) for slices in self.slices.values()]
            if min(spent_s) >= self._seconds:
                self.done.set()

    def finish(self) -> None:
        """Let all loops go on; nothing is noted any more."""
        self._is_over = True
        for gate in self._gates.values():
            gate.set()

    def _hand_to(self, name: str) -> None:
        self._current, self._since_s = Slice(), self._clock()
        self._gates[name].set()


class TurnWorker(EngineWorker):
    """A worker whose engines are used only while it is the loop's turn."""

    def __init__(self, worker: EngineWorker, turns: Turns, name: str) -> None:
        self._worker, self._turns, self._name = worker, turns, name

    def post(
        self, function: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> Future[_Result]:
        """As the worker does."""
        return self._worker.post(function, *args, **kwargs)

    async def call(
        self, function: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> _Result:
        """As the worker does, in turn.

        Raises:
            EngineError: as there.
        """
        await self._turns.take(self._name)
        return await self._worker.call(function, *args, **kwargs)

    def shutdown(self) -> None:
        """Nothing: others use the worker too."""
