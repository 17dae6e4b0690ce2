"""`dspark bench NAME`: measures, compares within the same run, and judges by its exit code."""

from __future__ import annotations

import importlib
from typing import Any

# Name -> module with `add_parser(subparsers)`. None of them loads torch before it runs.
_BENCHES = (
    "dspark.cli.bench_speed",
    "dspark.cli.bench_lossless",
    "dspark.cli.bench_overhead",
    "dspark.cli.bench_scheduler",
    "dspark.cli.bench_pareto",
    "dspark.cli.bench_training",
    "dspark.cli.bench_figures",
)


def add_parser(subparsers: Any) -> None:
    """Add the command and its benchmarks."""
    parser = subparsers.add_parser(
        "bench", help="measure speed, losslessness, overhead, scheduling", description=__doc__
    )
    benches = parser.add_subparsers(dest="bench", required=True, metavar="NAME")
    for module in _BENCHES:
        importlib.import_module(module).add_parser(benches)
