"""Starts `dspark up` as a user does and talks to it over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

CONFIG = """
[settings.verifier]
dtype = "float32"
pool_tokens = 4096
"""


@dataclass(frozen=True, slots=True)
class System:
    """A running `dspark up`. `runtime` is the directory below which its own private one lies."""

    process: subprocess.Popen[str]
    port: int
    runtime: Path

    def pid_of(self, module: str) -> int:
        """Process id of the child that runs `python -m module`."""
        for child in self.children():
            if child.cmdline()[-1] == module:
                return child.pid
        raise LookupError(f"no child runs {module}")

    def children(self) -> list[psutil.Process]:
        """The processes that were started."""
        return psutil.Process(self.process.pid).children()

    def log_of(self, name: str) -> str:
        """What a process has logged."""
        (path,) = self.runtime.rglob(f"{name}.log")
        return path.read_text()

    def stream(self, prompt: str, **fields: object) -> Iterator[dict[str, object]]:
        """Chunks of a streamed chat completion; fails unless the stream has its end."""
        body = {"messages": [{"role": "user", "content": prompt}], "stream": True, **fields}
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as response:
            for line in response:
                if line.startswith(b"data: [DONE]"):
                    return
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        raise AssertionError("the stream has no end")

    def answer(self, prompt: str, **fields: object) -> str:
        """The text of a whole answer."""
        return "".join(map(text_of, self.stream(prompt, **fields)))


def text_of(chunk: dict) -> str:
    assert "error" not in chunk, chunk
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


def start_up(runtime: Path, *arguments: str, more_config: str = "") -> System:
    """Start the command; `wait_ready` or `wait_end` follows."""
    port = _free_port()
    config = runtime.parent / "dspark.toml"
    config.write_text(CONFIG + more_config)
    runtime.mkdir(exist_ok=True)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "DSPARK_CACHE": str(runtime.parent / "cache")}
    command = [sys.executable, "-m", "dspark.cli.main", "up", "--port", str(port), "--config", str(config)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return System(subprocess.Popen([*command, *arguments], env=env, **pipes), port, runtime)


def wait_ready(system: System) -> list[str]:
    """Read what the command prints up to its last line of the welcome."""
    lines: list[str] = []
    assert system.process.stdout is not None
    for line in system.process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith("Ctrl-C"):
            return lines
    assert system.process.stderr is not None
    raise AssertionError("\n".join([*lines, system.process.stderr.read()]))


def wait_end(system: System) -> tuple[int, str]:
    """Exit code and standard error of a command that ends by itself or was told to."""
    _, errors = system.process.communicate(timeout=120)
    return system.process.returncode, errors


def stop(system: System) -> int:
    """What Ctrl-C does; returns the exit code."""
    system.process.send_signal(signal.SIGINT)
    return wait_end(system)[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
