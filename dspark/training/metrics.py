"""Figures of a run: JSON lines, TensorBoard where asked for, and sentences with rate and time left."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspark.errors import ConfigurationError

FILE_NAME = "metrics.jsonl"


class MetricsLog:
    """Appends rows to `metrics.jsonl` and, where asked for, to TensorBoard's files in the same directory."""

    def __init__(self, directory: Path, *, has_tensorboard: bool = False) -> None:
        self._path = directory / FILE_NAME
        self._writer = _tensorboard_writer(directory / "tensorboard") if has_tensorboard else None

    def forget_after(self, step: int) -> None:
        """Drop rows of later steps: a run that goes on from a checkpoint takes these steps again."""
        if not self._path.is_file():
            return
        kept = [line for line in self._path.read_text().splitlines() if _step_of(line) <= step]
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(line + "\n" for line in kept))
        os.replace(partial, self._path)

    def write(self, row: Mapping[str, float]) -> None:
        """Append one row; it names its `step`."""
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if self._writer is not None:
            for key, value in row.items():
                if key != "step":
                    self._writer.add_scalar(key, value, int(row["step"]))
            self._writer.flush()

    def close(self) -> None:
        """Close TensorBoard's file."""
        if self._writer is not None:
            self._writer.close()


def _step_of(line: str) -> float:
    """Step of a row; a line that a crash cut off is after everything."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError):
        return float("inf")


def _tensorboard_writer(directory: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigurationError(
            "--tensorboard needs the package tensorboard; install it with `pip install 'dspark[tensorboard]'`"
        ) from None
    return SummaryWriter(str(directory))


def read_metrics(directory: Path) -> list[dict[str, float]]:
    """All whole rows of a run so far."""
    lines = (directory / FILE_NAME).read_text().splitlines()
    return [json.loads(line) for line in lines if _step_of(line) < float("inf")]


def progress_sentence(
    *, step: int, total_steps: int | None, share: float, blocks_per_s: float, loss: float, left_s: float
) -> str:
    """One line for somebody who waits."""
    of_all = "" if total_steps is None else f" of {total_steps}"
    return (
        f"step {step}{of_all} ({share:.0%}), {blocks_per_s:.1f} blocks/s, loss {loss:.3f}, "
        f"{duration(left_s)} left"
    )


def duration(seconds: float) -> str:
    """A time in the two units that matter, such as 1 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def peak_memory_mib() -> float:
    """Most memory this process ever held resident, pages of mapped files included, in MiB."""
    status = Path("/proc/self/status")
    if status.is_file():  # the figure of `getrusage` outlives `exec`: it may be that of a parent
        (line,) = (one for one in status.read_text().splitlines() if one.startswith("VmHWM:"))
        return int(line.split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
