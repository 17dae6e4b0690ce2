"""Compiles the C++ kernels once per machine into a cache directory. Knows nothing of tensors."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from dspark.processor import cpuinfo

# -march=native: the library is keyed by the CPU's flags and never leaves the machine it was built on.
_FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=c++17", "-Wno-psabi")
_BUILD_TIMEOUT_S = 120


SERVING_KERNELS = Path(__file__).parent / "kernels.cpp"


def build_kernels(cache_dir: Path, *, source: Path = SERVING_KERNELS, compiler: str = "g++") -> Path | None:
    """Compile the kernels unless that was done before; safe to call from several processes at once.

    Args:
        cache_dir: root of the cache; the library goes to `cache_dir/kernels`.
        source: the file to compile; it may include the headers of this folder.
        compiler: a C++17 compiler that takes GCC's flags.

    Returns:
        The shared library, or None where there is no compiler or it fails: the torch path is used then.
    """
    executable = shutil.which(compiler)
    if executable is None:
        return None
    folder = cache_dir / "kernels"
    library = folder / f"{source.stem}-{_key(source, executable)}.so"
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _compile(executable, source, library)
    except (OSError, subprocess.SubprocessError):
        return None


def _compile(executable: str, source: Path, library: Path) -> Path:
    handle, scratch = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(handle)
    try:
        command = [executable, *_FLAGS, str(source), "-o", scratch]
        subprocess.run(command, check=True, capture_output=True, timeout=_BUILD_TIMEOUT_S)
        os.replace(scratch, library)
    finally:
        Path(scratch).unlink(missing_ok=True)
    return library


def source_key(source: Path = SERVING_KERNELS) -> str:
    """Changes whenever this source, the shared headers or the compiler flags do."""
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for file in [*sorted(Path(__file__).parent.glob("*.h")), source]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _key(source: Path, executable: str) -> str:
    stat = Path(executable).resolve().stat()
    text = f"{source_key(source)} {executable} {stat.st_size} {stat.st_mtime_ns} {cpu_flags()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cpu_flags() -> str:
    """The model name and instruction sets of this CPU, as Linux tells them; empty elsewhere."""
    wanted = ("model name", "flags", "Features", "CPU part")
    return "; ".join(value for name, value in cpuinfo().items() if name in wanted)
