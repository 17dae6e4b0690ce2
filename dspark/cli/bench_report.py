"""What every benchmark leaves behind: one JSON document with figures and origin, and a table to read."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dspark import __version__
from dspark.cli.exports import write_text
from dspark.cli.machine import read_machine
from dspark.evaluation.verdict import Check, all_met

_PACKAGES = ("torch", "transformers", "numpy", "grpcio", "protobuf", "safetensors", "tokenizers")
_THREAD_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_")
_RESULTS = Path("benchmarks") / "results"


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one benchmark.

    Attributes:
        name: of the benchmark, as in `dspark bench NAME`.
        setup: models, dtype, threads, prompts: what the figures depend on besides machine and code.
        figures: everything measured, by name.
        ratios: the figures that compare; dimensionless.
        checks: the verdict, line by line.
        notes: what a reader must know to read the figures right.
    """

    name: str
    setup: Mapping[str, Any]
    figures: Mapping[str, Any]
    ratios: Mapping[str, float] = field(default_factory=dict)
    checks: Sequence[Check] = ()
    notes: Sequence[str] = ()

    @property
    def is_met(self) -> bool:
        """Whether every check held."""
        return all_met(self.checks)

    def document(self) -> dict[str, Any]:
        """Everything, with the origin of the figures."""
        return {
            "name": self.name,
            **_origin(),
            "setup": dict(self.setup),
            "figures": dict(self.figures),
            "ratios": dict(self.ratios),
            "checks": [check.as_dict() for check in self.checks],
            "is_met": self.is_met,
            "notes": list(self.notes),
        }


def finish(report: Report, path: Path | None) -> int:
    """Write the report, print its verdict; 0 when every check held, else 1.

    Args:
        report: what was measured.
        path: where to write; None: `benchmarks/results/NAME.json` below the current directory, if that
            directory exists.
    """
    if report.ratios:
        print_table(["ratio", ""], [[name, f"{value:.3f}"] for name, value in report.ratios.items()])
    if report.checks:
        rows = [
            [check.name, check.found, check.wanted, "ok" if check.is_met else "MISSED"]
            for check in report.checks
        ]
        print_table(["check", "found", "wanted", ""], rows)
    for note in report.notes:
        print(f"note: {note}")
    place = path or _default_path(report.name)
    if place is not None:
        write_text("--json", place, json.dumps(report.document(), indent=2, ensure_ascii=False) + "\n")
        print(f"written to {place}")
    return 0 if report.is_met else 1


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as their widest cell, numbers to the right."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    print()
    for number, row in enumerate(cells):
        padded = [
            cell.rjust(width) if _is_number(cell) else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        print("  " + "  ".join(padded).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))
    sys.stdout.flush()


def progress(text: str) -> None:
    """One line about what is being done, apart from the results."""
    print(text, file=sys.stderr, flush=True)


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or (cell[:1] == "-" and cell[1:2].isdigit())


def _default_path(name: str) -> Path | None:
    return _RESULTS / f"{name}.json" if _RESULTS.is_dir() else None


def _origin() -> dict[str, Any]:
    return {
        "command": shlex.join(["dspark", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "hardware": asdict(read_machine()),
        "versions": _versions(),
        "thread_variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_THREAD_PREFIXES)},
        # What else ran on this machine: the mean over the last minute, this benchmark included.
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _versions() -> dict[str, str]:
    found = {"dspark": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """Commit of the checkout this code lies in, with `+` where it was changed since; empty outside of one."""
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
