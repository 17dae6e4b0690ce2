"""What `dspark bench speed` says of a run: figures, ratios, the verdict, tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from dspark.cli.bench_options import Models
from dspark.cli.bench_report import Report, print_table
from dspark.evaluation.verdict import Check, at_least, at_most

if TYPE_CHECKING:
    from dspark.decoding.types import VerifierInfo
    from dspark.evaluation.generation import TimedRound
    from dspark.evaluation.speed import Sample
    from dspark.evaluation.tasks import TaskPrompt

# Ratios within one run, so that they hold on any machine of this kind.
LEAST_DSPARK_VS_PLAIN = 1.3
LEAST_DSPARK_VS_TRANSFORMERS = 2.2
MOST_PLAIN_VS_RAW_MATMUL = 1.35

_NOTHING: dict[str, Any] = {"mean_committed": {}, "round_ms": {}, "differing_prompts": None}


@dataclass(slots=True)
class Measured:
    """What one run yields."""

    info: VerifierInfo
    groups: Sequence[Sequence[TaskPrompt]]
    samples: list[Sample] = field(default_factory=list)
    # of the systems that have rounds
    rounds: dict[str, list[TimedRound]] = field(default_factory=dict)
    raw_s: list[float] = field(default_factory=list)
    huge_page_share: float | None = None

    @property
    def systems(self) -> list[str]:
        """Names of the systems."""
        return sorted({sample.system for sample in self.samples})


def _of_rounds(measured: Measured, name: str) -> dict[str, Any]:
    """Figures of a system that drafts, besides its speed."""
    from dspark.evaluation import speed_figures as figures

    samples, groups = measured.samples, measured.groups
    return {
        "mean_committed": figures.committed_by_task(samples, groups, system=name),
        "round_ms": figures.round_times(measured.rounds[name]),
        "differing_prompts": figures.differing_prompts(samples, groups, first="plain", second=name),
    }


def make_report(args: argparse.Namespace, models: Models, measured: Measured) -> Report:
    """The figures of a run with these options and models, and the verdict."""
    import torch

    from dspark.engine.huge_pages import small_pages_sentence
    from dspark.evaluation import speed_figures as figures

    speeds = {name: figures.system_speed(measured.samples, name) for name in measured.systems}
    overall = {name: speed.overall for name, speed in speeds.items()}
    ratios = _ratios(overall, figures.plain_step_s(measured.rounds["plain"]), measured.raw_s)
    checks = _checks(ratios)
    ours = {name: _of_rounds(measured, name) for name in measured.rounds if name != "plain"}
    for name, own in ours.items():
        checks.append(
            figures.same_text_check(f"text of {name} and plain", own["differing_prompts"], measured.info)
        )
    return Report(
        name="speed",
        setup={
            "target": models.target.name,
            "drafter": models.drafter.name if models.drafter else None,
            "lookup": args.lookup != "off",
            "dtype": measured.info.dtype,
            "is_exact": measured.info.is_exact,
            "threads": torch.get_num_threads(),
            "prompts": sum(map(len, measured.groups)),
            "tokens": args.tokens,
            "repeats": args.repeats,
            "streams": args.streams,
            "policy": args.policy,
        },
        figures={
            "tokens_per_second": {name: speed.as_dict() for name, speed in speeds.items()},
            **ours.get("dspark", _NOTHING),
            "plain_round_ms": figures.round_times(measured.rounds["plain"]),
            "raw_matmul_ms": 1e3 * median(measured.raw_s),
            "huge_page_share": measured.huge_page_share,
            "beside": {name: own for name, own in ours.items() if name != "dspark"},
        },
        ratios=ratios,
        checks=checks,
        notes=[note] if (note := small_pages_sentence(measured.huge_page_share)) else [],
    )


def _ratios(overall: dict[str, float], plain_step_s: float | None, raw_s: list[float]) -> dict[str, float]:
    ratios = {
        f"dspark_vs_{name.replace(' ', '_')}": overall["dspark"] / speed
        for name, speed in overall.items()
        if "dspark" in overall and name != "dspark"
    }
    if plain_step_s is not None:
        ratios["plain_vs_raw_matmul"] = plain_step_s / median(raw_s)
    return ratios


def _checks(ratios: dict[str, float]) -> list[Check]:
    checks = []
    if "dspark_vs_plain" in ratios:
        checks.append(at_least("dspark_vs_plain", ratios["dspark_vs_plain"], LEAST_DSPARK_VS_PLAIN))
    if "dspark_vs_transformers" in ratios:
        checks.append(
            at_least("dspark_vs_transformers", ratios["dspark_vs_transformers"], LEAST_DSPARK_VS_TRANSFORMERS)
        )
    if "plain_vs_raw_matmul" in ratios:
        checks.append(at_most("plain_vs_raw_matmul", ratios["plain_vs_raw_matmul"], MOST_PLAIN_VS_RAW_MATMUL))
    return checks


def print_figures(report: Report) -> None:
    """Print a report of `make_report` as tables."""
    setup, figures = report.setup, report.figures
    print(
        f"{setup['target']}, {setup['dtype']}, {setup['threads']} threads, {setup['prompts']} prompts, "
        f"up to {setup['tokens']} tokens, greedy, {setup['streams']} at a time"
    )
    columns = ("overall", "median", "min", "max")
    rows = [
        [name, *(f"{speed[column]:.1f}" for column in columns)]
        for name, speed in figures["tokens_per_second"].items()
    ]
    print_table(["tokens/s", *columns], rows)
    committed = {"dspark": figures["mean_committed"]}
    rounds = {"dspark": figures["round_ms"], "plain": figures["plain_round_ms"]}
    for name, other in figures["beside"].items():
        committed[name], rounds[name] = other["mean_committed"], other["round_ms"]
    if figures["mean_committed"]:
        tasks = list(figures["mean_committed"])
        rows = [[name, *(f"{own[task]:.2f}" for task in tasks)] for name, own in committed.items()]
        print_table(["mean committed", *tasks], rows)
    parts = ("draft", "verify", "other", "round")
    rows = [[name, *(f"{own[part]:.2f}" for part in parts)] for name, own in rounds.items() if own]
    print_table(["ms per round", *parts], rows)
    print(f"  all linear layers, one row: {figures['raw_matmul_ms']:.2f} ms")
    if figures["huge_page_share"] is not None:
        print(f"  memory for weights and keys on huge pages: {figures['huge_page_share']:.0%}")
