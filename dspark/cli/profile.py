"""`dspark profile`: what a step of the target and a draft cost on this machine, as the scheduler knows it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.cache import default_cache_dir
from dspark.cli.bench_options import Models, add_model_options, read_models
from dspark.cli.bench_report import Report, finish, print_table, progress
from dspark.cli.exports import Export, add_export_option, write_export, write_text
from dspark.cli.machine import read_machine
from dspark.errors import ConfigurationError
from dspark.evaluation.chart import Panel, Series, bar, svg
from dspark.evaluation.cost_table import SizeCost, by_size
from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.formats import sglang, tensorrt_llm
from dspark.scheduling.formats.costs import RoundCosts

if TYPE_CHECKING:
    from dspark.evaluation.cost_profile import CostProfile

_FORMATS = {
    "sglang": "SGLang's additive table, drafts apart from steps",
    "sglang-1d": "SGLang's table by tokens alone",
    "tensorrt-llm": "TensorRT-LLM's curve",
}


def add_parser(subparsers: Any) -> None:
    """Add `dspark profile`."""
    parser = subparsers.add_parser(
        "profile",
        help="what steps and drafts cost here",
        description=(
            "Prints the capacity curve of the target and the draft cost curve of the drafter, with which the "
            "scheduler plans. Steps are measured once for the same weights, hardware and versions, and kept "
            "in the cache; drafts are measured at every start."
        ),
    )
    add_model_options(parser)
    parser.add_argument("--fresh", action="store_true", help="measure steps anew, and keep that")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the curves")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything")
    add_export_option(parser, "the cost table", _FORMATS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read or measure, print, draw, write."""
    from dspark.evaluation.cost_profile import read_profile

    models = read_models(args)
    progress("loading the engines, measuring what was not measured before")
    profile = read_profile(models.target, models.drafter, default_cache_dir(), is_fresh=args.fresh)
    steps = by_size(profile.step_cost)
    drafts = by_size(profile.draft_cost) if profile.draft_cost else []
    _print(profile, models, steps, drafts)
    if args.plot is not None:
        write_text("--plot", args.plot, svg(_panels(steps, drafts)))
        print(f"drawn to {args.plot}")
    if args.json is not None:
        finish(_report(profile, models, steps, drafts), args.json)
    for export in args.export:
        _export(export, profile)
    return 0


def _flat_sentence(profile: CostProfile) -> str | None:
    """Why adaptive policies would refuse this curve; None where they would take it."""
    try:
        CapacityCurve.from_points(profile.step_cost).check_rises()
    except ConfigurationError as error:
        return f"the policies early-stop, barrier and retrospective would refuse to start: {error}"
    return None


def _print(profile: CostProfile, models: Models, steps: list[SizeCost], drafts: list[SizeCost]) -> None:
    for line in _origin_lines(profile, models):
        print(line)
    best = max(one.tokens_per_s for one in steps)
    rows = [
        [
            str(one.size),
            f"{1e3 * one.measured_s:.2f}",
            f"{1e3 * one.seconds:.2f}",
            _further(one, 1e3, 3),
            f"{1 / one.seconds:.1f}",
            f"{one.tokens_per_s:.1f}",
            bar(one.tokens_per_s / best),
        ]
        for one in steps
    ]
    print_table(
        ["step tokens", "measured ms", "curve ms", "a further token ms", "steps/s", "tokens/s", ""], rows
    )
    if drafts:
        rows = [
            [
                str(one.size),
                f"{one.size / profile.gamma:.1f}",
                f"{1e3 * one.measured_s:.2f}",
                f"{1e3 * one.seconds:.2f}",
                _further(one, 1e6, 0),
            ]
            for one in drafts
        ]
        print_table(["draft slots", "blocks", "measured ms", "curve ms", "a further slot µs"], rows)
    if flat := _flat_sentence(profile):
        print(f"\n{flat}")


def _origin_lines(profile: CostProfile, models: Models) -> list[str]:
    machine = read_machine()
    when = "just now" if profile.is_new else f"{profile.measured_at:%Y-%m-%d %H:%M} UTC"
    drafter = models.drafter.name if models.drafter else "none"
    return [
        f"target   {models.target.name}, {profile.dtype}; drafter {drafter}",
        f"machine  {machine.cpu_model}, {machine.num_cores} cores, {profile.num_threads} threads",
        f"steps    measured {when}, each request with {profile.context_len} tokens before its own",
        f"valid    for these weights, this processor and these versions (key {profile.key})",
    ]


def _further(one: SizeCost, unit: float, digits: int) -> str:
    return "" if one.marginal_s is None else f"{unit * one.marginal_s:.{digits}f}"


def _panels(steps: list[SizeCost], drafts: list[SizeCost]) -> list[Panel]:
    named = [("Step of the target", "batch tokens", steps), ("Draft", "slots of all blocks", drafts)]
    panels = [
        Panel(
            title,
            label,
            "ms",
            [
                Series("curve", [(one.size, 1e3 * one.seconds) for one in costs]),
                Series("measured", [(one.size, 1e3 * one.measured_s) for one in costs], has_line=False),
            ],
            is_x_log=True,
        )
        for title, label, costs in named
        if costs
    ]
    speeds = [(one.size, one.tokens_per_s) for one in steps]
    return [
        *panels,
        Panel("Tokens per second", "batch tokens", "tokens/s", [Series("tokens/s", speeds)], is_x_log=True),
    ]


def _report(profile: CostProfile, models: Models, steps: list[SizeCost], drafts: list[SizeCost]) -> Report:
    return Report(
        name="profile",
        setup={
            "target": models.target.name,
            "drafter": models.drafter.name if models.drafter else None,
            **asdict(profile),
            "measured_at": profile.measured_at.isoformat(timespec="seconds"),
        },
        figures={
            "steps": [one.as_dict() for one in steps],
            "drafts": [one.as_dict() for one in drafts],
            "refused_by_adaptive_policies": _flat_sentence(profile),
        },
    )


def _export(export: Export, profile: CostProfile) -> None:
    gamma = profile.gamma or 1
    costs = RoundCosts.of(profile.step_cost, profile.draft_cost, gamma)
    tables: Mapping[str, tuple[dict[str, Any], Callable[[object], object]]] = {
        "sglang": (sglang.additive_table(costs), sglang.read_costs),
        "sglang-1d": (sglang.sps_table(costs, gamma), sglang.read_costs),
        "tensorrt-llm": (tensorrt_llm.cost_table(costs), tensorrt_llm.read_costs),
    }
    write_export(export, *tables[export.format])
