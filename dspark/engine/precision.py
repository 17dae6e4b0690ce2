"""Chooses the dtype of a target: bfloat16 or float32, whichever this machine multiplies faster."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from dspark.engine.linear import make_linear, open_arena
from dspark.engine.measurements import Measurements
from dspark.errors import ConfigurationError

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
# Rows of a step that verifies few, some and many drafts.
_ROW_COUNTS = (1, 8, 32)
_REPEATS = 5
_MAX_WEIGHTS = 1 << 22


@dataclass(frozen=True, slots=True)
class DtypeChoice:
    """A dtype and why.

    Attributes:
        dtype: of weights, KV pages and computation.
        reason: one sentence for a log or a report.
    """

    dtype: torch.dtype
    reason: str


def choose_dtype(name: str, path: Path, *, measurements: Measurements, cache_dir: Path) -> DtypeChoice:
    """The dtype a user named, or for "auto" the one that is faster here; measured once per machine.

    Raises:
        ConfigurationError: no such dtype.
    """
    if name != "auto":
        if name not in _DTYPES:
            raise ConfigurationError(f"dtype is {name!r}; choose auto, {', '.join(_DTYPES)}")
        return DtypeChoice(_DTYPES[name], "asked for")
    found = measurements.recall("dtype")
    if found is None:
        found = _time_layers(path, ("bfloat16", "float32"), cache_dir=cache_dir)
        measurements.record("dtype", found)
    best = min(found, key=lambda kind: float(found[kind]))
    other = "float32" if best == "bfloat16" else "bfloat16"
    reason = (
        f"the matmuls of one layer take {found[best] * 1e3:.2f} ms in {best} and {found[other] * 1e3:.2f} ms "
        f"in {other} (mean over {', '.join(map(str, _ROW_COUNTS))} rows)"
    )
    return DtypeChoice(_DTYPES[best], reason)


@torch.inference_mode()
def _time_layers(path: Path, kinds: Sequence[str], *, cache_dir: Path) -> dict[str, float]:
    """Seconds of the linear layers of one decoder layer in each dtype, the mean over the row counts.

    The fastest of some passes in which the dtypes take turns: neighbours on the machine only ever add time,
    and the choice is kept.
    """
    arena = open_arena(cache_dir)
    layers = {
        kind: [
            (width, make_linear(torch.full((height, width), 0.01, dtype=_DTYPES[kind]), arena=arena))
            for height, width in _layer_shapes(path)
        ]
        for kind in kinds
    }
    fastest: dict[tuple[str, int], float] = {}
    for repeat in range(_REPEATS + 1):
        for num_rows in _ROW_COUNTS:
            for kind in kinds:
                seconds = _time_pass(layers[kind], num_rows, _DTYPES[kind])
                # The first one prepares what the others reuse.
                if repeat > 0:
                    fastest[kind, num_rows] = min(seconds, fastest.get((kind, num_rows), seconds))
    return {kind: statistics.mean(fastest[kind, num_rows] for num_rows in _ROW_COUNTS) for kind in kinds}


def _time_pass(layers: Sequence[tuple[int, nn.Module]], num_rows: int, dtype: torch.dtype) -> float:
    inputs = {width: torch.ones(num_rows, width, dtype=dtype) for width, _ in layers}
    started = time.perf_counter()
    for width, layer in layers:
        layer(inputs[width])
    return time.perf_counter() - started


def _layer_shapes(path: Path) -> list[tuple[int, int]]:
    """[out, in] of the linear layers, large ones cut so that the measurement stays short."""
    config = json.loads((path / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    shapes = [(2 * hidden, hidden), (hidden, hidden), (2 * inner, hidden), (hidden, inner)]
    return [(min(height, max(16, _MAX_WEIGHTS // width)), width) for height, width in shapes]
