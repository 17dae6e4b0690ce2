"""Tiny real child processes for the tests of the supervisor, and a reporter that remembers."""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from dspark.cli.process import ProcessSpec

READY = re.compile(r"^ready (.*)$")

SERVES = """
import signal, sys
print("ready now", flush=True)
signal.pause()
"""

# Notes its name in a file when it is told to stop, so that a test can read the order.
NOTES_ITS_STOP = """
import signal, sys
def stop(*_):
    with open(sys.argv[1], "a") as file:
        file.write(sys.argv[2] + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready now", flush=True)
while True:
    signal.pause()
"""

IGNORES_SIGTERM = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready now", flush=True)
while True:
    signal.pause()
"""

# Connects to a unix socket from a grandchild: the connection ends when the last of them is gone.
HAS_A_CHILD = """
import os, signal, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    connection.close()
    print("ready now", flush=True)
while True:
    signal.pause()
"""


def script_spec(code: str, *arguments: str | Path, name: str = "child", **fields: object) -> ProcessSpec:
    argv = (sys.executable, "-c", code, *map(str, arguments))
    return ProcessSpec(name, argv, READY, **fields)  # type: ignore[arg-type]


@dataclass
class RecordingReporter:
    events: list[tuple[str, ...]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def ready(self, name: str, seconds: float) -> None:
        self._note("ready", name)

    def died(self, name: str, how: str, delay_s: float) -> None:
        self._note("died", name, how)

    def gave_up(self, name: str, why: str) -> None:
        self._note("gave_up", name, why)

    def _note(self, *event: str) -> None:
        self.events.append(event)
        self.changed.set()

    async def wait_for(self, event: tuple[str, ...], count: int = 1) -> None:
        while self.events.count(event) < count:
            self.changed.clear()
            await self.changed.wait()
