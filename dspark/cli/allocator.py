"""Gives this process an allocator that keeps its memory: jemalloc where it is installed, else glibc told to.

Training makes and drops tensors of tens of megabytes all the time. glibc hands their pages back to the kernel
each time and has them zeroed again, one fault a page. Knows nothing of training.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_JEMALLOC = "libjemalloc.so.2"
# Keep what was freed lately, on huge pages, and give large blocks no arena of their own. What is kept for
# ever grows: blocks of new sizes do not fit into the old ones (1.5 GiB a minute were seen).
_JEMALLOC_CONF = "dirty_decay_ms:10000,muzzy_decay_ms:10000,thp:always,oversize_threshold:0"
_OTHERS = ("jemalloc", "tcmalloc", "mimalloc")
_LIBRARY_DIRS = tuple(
    Path(folder)
    for folder in (
        f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    )
)
# Parameters of glibc's mallopt, see malloc.h, in the order they are set.
_GLIBC_OPTIONS = (
    (-8, 1),  # M_ARENA_MAX: the arenas of other threads cannot grow to such sizes
    (-4, 0),  # M_MMAP_MAX: no block has a mapping of its own, which ends with it
    (-1, -1),  # M_TRIM_THRESHOLD: the heap never shrinks
)


def arrange_allocator(say: Callable[[str], None], library_dirs: Sequence[Path] = _LIBRARY_DIRS) -> None:
    """Restart this process under jemalloc, once; where there is none, tune glibc and go on.

    Call it before anything large is imported or made: a restart does it all again.

    Args:
        say: told in one sentence what is done; nothing where an allocator was chosen from outside.
        library_dirs: where to look for jemalloc before the linker is asked.
    """
    if sys.platform != "linux" or any(name in os.environ.get("LD_PRELOAD", "") for name in _OTHERS):
        return
    library = find_jemalloc(library_dirs)
    if library is None:
        how = (
            "glibc is told to keep its memory"
            if tune_glibc()
            else "the C library cannot be told to keep memory"
        )
        say(f"no jemalloc (Debian: libjemalloc2), which would be faster; {how}")
        return
    say(f"starting again with {library}, which keeps the memory of dropped tensors")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], preloading(library, os.environ))


def find_jemalloc(library_dirs: Sequence[Path] = _LIBRARY_DIRS) -> str | None:
    """What to preload: a path, or a name the linker knows."""
    for folder in library_dirs:
        if (folder / _JEMALLOC).is_file():
            return str(folder / _JEMALLOC)
    return ctypes.util.find_library("jemalloc")


def preloading(library: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with the library loaded first; other preloads and a given MALLOC_CONF stay."""
    preload = " ".join(part for part in (library, environ.get("LD_PRELOAD", "")) if part)
    return {"MALLOC_CONF": _JEMALLOC_CONF, **environ, "LD_PRELOAD": preload}


def tune_glibc() -> bool:
    """Have malloc keep what is freed; False where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(name, value) == 1 for name, value in _GLIBC_OPTIONS)
