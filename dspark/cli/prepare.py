"""`dspark prepare`: does ahead what the first `dspark up` would wait for.

`dspark up` runs it as a process of its own, because preparing may load a model and the command stays small
while it supervises.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dspark.cache import default_cache_dir
from dspark.engine.kernels.build import build_kernels
from dspark.errors import ConfigurationError

# A terminal shows every step of this size; elsewhere a line is written for each quarter.
_TERMINAL_STEP = 0.01
_LOG_STEP = 0.25


def add_parser(subparsers: Any) -> None:
    """Add `dspark prepare`."""
    parser = subparsers.add_parser(
        "prepare",
        help="convert the target and compile the kernels ahead",
        description=(
            "Converts the target to the form it is served from and compiles the C++ kernels for this "
            "processor. Both are kept in the cache ($DSPARK_CACHE, else ~/.cache/dspark), so that dspark up "
            "need not wait for them; what is there already is left alone. The last line says where the "
            "target lies."
        ),
    )
    parser.add_argument(
        "--target", metavar="DIR|GGUF", help="model to prepare (default: SmolLM2-135M-Instruct)"
    )
    parser.add_argument("--cache-dir", type=Path, metavar="DIR", help="cache to use instead")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Convert and compile side by side; the last line says `prepared PATH`."""
    cache = args.cache_dir or default_cache_dir()
    with ThreadPoolExecutor(1) as pool:
        kernels = pool.submit(build_kernels, cache)
        path = _prepare_target(args.target, cache)
        if kernels.result() is None:
            print("no kernels: g++ is missing or failed; torch does their work, slower", file=sys.stderr)
    print(f"prepared {path}", flush=True)
    return 0


def _prepare_target(target: str | None, cache: Path) -> Path:
    from dspark.models.target import prepare_target

    try:
        return prepare_target(target, cache, _ConversionProgress())
    except ImportError as error:
        raise ConfigurationError(str(error)) from error


class _ConversionProgress:
    """Says on stderr how far the conversion is: one line rewritten in a terminal, a few lines elsewhere."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._step = _TERMINAL_STEP if self._is_terminal else _LOG_STEP
        self._next = 0.0

    def __call__(self, share: float) -> None:
        if share < self._next and share < 1:
            return
        self._next = share + self._step
        text = f"converting the target, once: {share:4.0%} after {time.monotonic() - self._started:.0f} s"
        end = "\n" if not self._is_terminal or share == 1 else ""
        print("\r" * self._is_terminal + text, end=end, file=sys.stderr, flush=True)
