"""A run as JSON, and as the few lines a person reads."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import sys
from pathlib import Path
from typing import Any

from loadtest.sla import Sla
from loadtest.verdict import Figures, Verdict


def report_dict(figures: Figures, verdict: Verdict, sla: Sla, settings: dict[str, Any]) -> dict[str, Any]:
    """Everything needed to judge the run again. JSON has no NaN: a missing figure is null."""
    return {
        "verdict": verdict.outcome.name.lower(),
        "reasons": list(verdict.reasons),
        "figures": {
            **_without_nan(dataclasses.asdict(figures)),
            "error_rate": figures.error_rate,
            "attainment": figures.attainment,
            "goodput": figures.goodput,
        },
        "sla": dataclasses.asdict(sla),
        "settings": settings,
        "machine": {
            "processor": platform.machine(),
            "num_cores": os.cpu_count(),
            "system": platform.platform(),
        },
        "python": platform.python_version(),
        "command": sys.argv,
    }


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write the report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def verdict_lines(figures: Figures, verdict: Verdict) -> list[str]:
    """What is printed at the end; the last line is the verdict."""
    good = f"{figures.num_good} good of {figures.num_sent} sent, {figures.num_errors} failed"
    speed = figures.user_tokens_per_second
    lines = [
        f"{good} in {figures.window_s:.0f} s: goodput {figures.goodput:.2f} req/s",
        f"{figures.tokens_per_second:.1f} tok/s in all; "
        f"per user {speed['p50']:.1f} (median), {speed['p5']:.1f} (p5)",
        *(
            f"{name}  p50 {times['p50']:8.1f}  p95 {times['p95']:8.1f}  p99 {times['p99']:8.1f} ms"
            for name, times in (
                ("TTFT", figures.ttft_ms),
                ("TPOT", figures.tpot_ms),
                ("E2E ", figures.e2e_ms),
            )
        ),
    ]
    if figures.mean_committed is not None:
        lines.append(f"{figures.mean_committed:.2f} tokens committed per drafted round")
    reasons = f": {'; '.join(verdict.reasons)}" if verdict.reasons else ""
    return [*lines, f"{verdict.outcome.name.replace('_', ' ')}{reasons}"]


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
