"""`dspark bench figures`: the paper's offline figures, from stored evaluations of several drafters."""

from __future__ import annotations

import argparse
import functools
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.cache import default_cache_dir
from dspark.cli.bench_options import add_report_option
from dspark.cli.bench_report import Report, finish, print_table, progress
from dspark.cli.exports import write_text
from dspark.cli.machine import read_machine
from dspark.errors import ConfigurationError
from dspark.evaluation.verdict import Check, at_least

if TYPE_CHECKING:
    from dspark.evaluation.paper.collection import Collection, Member
    from dspark.evaluation.paper.figure import Figure

# Paper Table 1: 16 to 18 %.
LEAST_GAIN_OVER_DFLASH = 1.12
# The paper's draft lengths 4, 8, 12 and 16 count the anchor.
_GAMMAS = (3, 7, 11, 15)
_CONTEXT_LEN = 256
_REPEATS = 200


def add_parser(subparsers: Any) -> None:
    """Add `dspark bench figures`."""
    parser = subparsers.add_parser(
        "figures",
        help="the paper's offline figures from stored evaluations",
        description=(
            "Rebuilds Table 1 and Fig. 2 to 6 of the paper from evaluations stored below a directory, one "
            "for each drafter (`dspark evaluate --drafter D --report DIR/NAME`), and says where a curve has "
            "another shape than the paper's. No model is loaded, except by --latency."
        ),
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("benchmarks") / "figures",
        metavar="DIR",
        help="where the evaluations are stored (default: benchmarks/figures)",
    )
    parser.add_argument("--report", type=Path, metavar="DIR", help="write figures.html and figures.md there")
    parser.add_argument(
        "--latency",
        action="store_true",
        help="first measure what the sequential head adds to a round at gamma 3 to 15, and store it",
    )
    add_report_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, rebuild, print, write, judge."""
    from dspark.evaluation.paper.build import build_figures, notes_on
    from dspark.evaluation.paper.collection import read_collection

    if not args.results.is_dir():
        raise ConfigurationError(f"--results {args.results}: no such directory")
    if args.latency:
        _store_latency(args.results)
    collection = read_collection(args.results)
    figures, notes = build_figures(collection), notes_on(collection)
    for figure in figures:
        _print(figure)
    report = _report(collection, figures, notes)
    if args.report is not None:
        _write(args.report, collection, figures, notes)
    return finish(report, args.json)


def _print(figure: Figure) -> None:
    print(f"\n{figure.title}")
    for table in figure.tables:
        print_table(table.head, table.rows)
    if figure.shapes:
        rows = [
            [one.statement, one.published, one.found, "as the paper" if one.holds else "DIFFERS"]
            for one in figure.shapes
        ]
        print_table(["shape", "paper", "here", ""], rows)


def _report(collection: Collection, figures: list[Figure], notes: list[str]) -> Report:
    from dspark.evaluation.paper.collection import DFLASH
    from dspark.evaluation.paper.figure import macro

    ours = collection.reference
    ratios, checks = {}, []
    for one in collection.main:
        if one is ours:
            continue
        ratios[f"accept_len over {one.kind}"] = macro(ours) / macro(one)
        if ours.speed is not None and one.speed is not None:
            ratios[f"speed over {one.kind}"] = ours.speed / one.speed
    for name, value in ratios.items():
        bound = LEAST_GAIN_OVER_DFLASH if name.endswith(f"over {DFLASH}") else 1.0
        checks.append(at_least(name, value, bound))
    return Report(
        name="figures",
        setup={"members": [_describe(one) for one in collection.members], **_tasks(ours)},
        figures={one.key: [asdict(shape) for shape in one.shapes] for one in figures},
        ratios=ratios,
        checks=checks + _budget_checks(collection),
        notes=notes,
    )


def _budget_checks(collection: Collection) -> list[Check]:
    """A comparison of drafters is one of budgets unless these are equal, in blocks or in hours."""
    from dspark.evaluation.paper.collection import budget_ratios

    trained = [one for one in collection.main if one.blocks]
    if len(trained) < 2:
        return []
    ratios = budget_ratios(trained)
    unit = max(ratios, key=lambda one: ratios[one])
    return [at_least(f"smallest over largest budget, {unit}", ratios[unit], 0.95)]


def _describe(member: Member) -> dict[str, Any]:
    return {
        "name": member.name,
        "kind": member.kind,
        "layers": member.num_layers,
        "gamma": member.gamma,
        "blocks": member.blocks,
        "hours": member.hours,
    }


def _tasks(member: Member) -> dict[str, Any]:
    setup = member.results.setup
    return {name: setup[name] for name in ("target", "dtype", "tokens", "limit") if name in setup}


def _write(directory: Path, collection: Collection, figures: list[Figure], notes: list[str]) -> None:
    """Write both pages.

    Raises:
        ConfigurationError: one cannot be written.
    """
    from dspark.evaluation.page import html_of, markdown_of
    from dspark.evaluation.paper.report import page_of

    origin = " · ".join(f"{name} {value}" for name, value in _tasks(collection.reference).items())
    page = page_of(figures, notes, collection.remarks, origin)
    write = functools.partial(write_text, "--report")
    write(directory / "figures.html", html_of(page))
    write(directory / "figures.md", markdown_of(page, "figures.html"))
    print(f"report in {directory / 'figures.html'}")


def _store_latency(directory: Path) -> None:
    """Measure on this machine and keep it beside the evaluations."""
    from dspark.cli.paths import shipped_drafter_dir
    from dspark.evaluation.head_latency import measure_latencies
    from dspark.evaluation.paper.collection import LATENCY
    from dspark.models.config_file import read_config
    from dspark.models.target import prepare_target

    target = prepare_target(None, default_cache_dir())
    config = read_config(shipped_drafter_dir())
    progress(f"measuring rounds at gamma {', '.join(map(str, _GAMMAS))}")
    rounds = measure_latencies(
        config,
        target,
        _GAMMAS,
        context_len=_CONTEXT_LEN,
        repeats=_REPEATS,
        cache_dir=default_cache_dir(),
    )
    setup = {
        "machine": read_machine().cpu_model,
        "layers": config.num_hidden_layers,
        "rank": config.markov_rank,
        "context": _CONTEXT_LEN,
        "repeats": _REPEATS,
    }
    document = {"setup": setup, "rounds": [asdict(one) for one in rounds]}
    write_text("--results", directory / LATENCY, json.dumps(document, indent=1) + "\n")
