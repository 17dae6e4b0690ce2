"""`dspark evaluate`: what a drafter's blocks are worth, task by task."""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.cache import default_cache_dir
from dspark.cli.bench_options import (
    add_model_options,
    add_prompt_options,
    add_report_option,
    need_drafter,
    non_negative_float,
    positive,
    read_models,
)
from dspark.cli.bench_report import Report, finish, print_table, progress
from dspark.cli.exports import write_text
from dspark.cli.options import add_lookup_option
from dspark.errors import ConfigurationError

if TYPE_CHECKING:
    from dspark.evaluation.offline.figures import Figures
    from dspark.evaluation.offline.results import Results
    from dspark.evaluation.offline.tables import Table
    from dspark.evaluation.tasks import TaskPrompt

_LIMIT = 8
_SWEEPS = ("auto", "run", "off")


def add_parser(subparsers: Any) -> None:
    """Add `dspark evaluate`."""
    parser = subparsers.add_parser(
        "evaluate",
        help="measure how good a drafter is",
        description=(
            "Decodes prompts with whole blocks and as served, and tells by task, by domain and over all: "
            "DeepSpec's accepted length and rates, acceptance by position given that all drafts before were "
            "accepted, what a threshold on confidences would do, and how well confidences predict survival, "
            "as they are, as shipped and refitted on other prompts. Above temperature 0 also coupled "
            "sampling, which seeded requests use. Of a task with more prompts than --limit it takes a fixed "
            "random choice, DeepSpec's where the limit is DeepSpec's. docs/evaluation.md tells more."
        ),
    )
    add_model_options(parser)
    _add_prompt_options(parser)
    _add_decoding_options(parser)
    # What is measured is the drafter.
    add_lookup_option(parser, default="off")
    _add_sweep_options(parser)
    _add_file_options(parser)
    parser.set_defaults(run=run)


def _add_prompt_options(parser: argparse.ArgumentParser) -> None:
    add_prompt_options(parser, limit=_LIMIT)
    parser.add_argument(
        "--hub",
        action="store_true",
        help="take the paper's nine benchmarks from the Hugging Face Hub (needs the `datasets` package)",
    )
    parser.add_argument(
        "--tasks", nargs="+", metavar="TASK", help="only these tasks (default: all there are)"
    )


def _add_decoding_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens", type=positive, default=256, help="most tokens of an output (default: 256; DeepSpec: 2048)"
    )
    temperatures = parser.add_mutually_exclusive_group()
    temperatures.add_argument(
        "--temperature", type=non_negative_float, default=0.0, help="0 is greedy (default: 0)"
    )
    temperatures.add_argument(
        "--temperatures", type=non_negative_float, nargs="+", metavar="T", help="several, as in 0 1"
    )
    parser.add_argument("--streams", type=positive, default=8, help="prompts side by side (default: 8)")
    parser.add_argument(
        "--only-blocks",
        action="store_true",
        help="leave out the passes as served and with coupled sampling: 3 of the 6 at temperatures 0 and 1",
    )


def _add_sweep_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--thresholds", type=_threshold, nargs="+", metavar="C", help="of the sweep (default: 0 to 0.95)"
    )
    parser.add_argument(
        "--sweep",
        choices=_SWEEPS,
        default="auto",
        help="auto: exact from one more decoding at temperature 0, else from the whole blocks; run: decode "
        "with each threshold; off (default: auto)",
    )


def _add_file_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="write report.html, report.md, metrics.json and rounds.json there",
    )
    parser.add_argument(
        "--from",
        dest="stored",
        type=Path,
        metavar="FILE",
        help="compute everything anew from the rounds.json of a report, without a model",
    )
    add_report_option(parser)


def run(args: argparse.Namespace) -> int:
    """Decode or read, compute, print, write."""
    from dspark.evaluation.offline.figures import THRESHOLDS, figures_of
    from dspark.evaluation.offline.results import read_results

    results = read_results(args.stored) if args.stored else _decode(args)
    figures = figures_of(results, sorted(set(args.thresholds or THRESHOLDS)))
    _print(results, figures)
    report = Report("evaluate", results.setup, figures.as_dict(has_bins=False), notes=figures.notes)
    if args.report is not None:
        _write_report(args.report, results, figures, report)
    return finish(report, args.json)


def _decode(args: argparse.Namespace) -> Results:
    from dspark.evaluation.generation import EnginePlan, load_engines
    from dspark.evaluation.offline.decode import DecodePlan, pool_tokens
    from dspark.evaluation.offline.figures import THRESHOLDS
    from dspark.evaluation.offline.run import pass_plans, run_passes

    models = read_models(args)
    drafter = need_drafter(models)
    prompts = _prompts(args, models.target)
    plan = DecodePlan(args.tokens, args.streams)
    progress("loading the engines")
    engines = load_engines(
        EnginePlan(
            models.target,
            drafter,
            pool_tokens=pool_tokens(prompts, plan),
            cache_dir=default_cache_dir(),
            with_lookup=args.lookup == "on",
        )
    )
    setup = {
        "target": models.target.name,
        "drafter": drafter.name,
        "lookup": args.lookup == "on",
        "dtype": engines.target.info.dtype,
        "tokens": args.tokens,
        "streams": args.streams,
        "seed": plan.seed,
        "limit": args.limit,
    }
    assert engines.drafter is not None, "a drafter was asked for"
    empty = _empty_results(setup, drafter, engines.drafter.info.gamma, args.tokens, prompts)
    plans = pass_plans(
        list(dict.fromkeys(args.temperatures or [args.temperature])),
        sweep=args.sweep,
        thresholds=sorted(set(args.thresholds or THRESHOLDS)),
        only_blocks=args.only_blocks,
    )
    passes = asyncio.run(run_passes(engines, prompts, plan, plans, empty, progress))
    engines.worker.shutdown()
    return replace(empty, passes=tuple(passes))


def _empty_results(
    setup: dict[str, Any], drafter: Path, gamma: int, max_new_tokens: int, prompts: Sequence[TaskPrompt]
) -> Results:
    """What is known before anything is decoded."""
    from dspark.evaluation.offline.results import Results
    from dspark.models.calibration import Calibration
    from dspark.models.config_file import read_config
    from dspark.models.method import is_prompt_lookup
    from dspark.training.card import read_budget

    tasks = tuple(prompt.task for prompt in prompts)
    if is_prompt_lookup(drafter):
        shape = {"kind": "prompt lookup", "layers": 0, "gamma": gamma}
        return Results(setup | shape, gamma, max_new_tokens, tasks, (), has_confidence_head=False)
    config = read_config(drafter)
    shape = {"kind": config.kind, "layers": config.num_hidden_layers, "gamma": gamma}
    shipped = {}
    if not setup["lookup"]:  # copies have chances of their own, so confidences are taken as they come
        calibration = Calibration.read(drafter, gamma)
        shipped = {"greedy": calibration.greedy, "sampling": calibration.sampling}
    return Results(
        setup | shape | read_budget(drafter),
        gamma,
        max_new_tokens,
        tasks,
        (),
        shipped,
        config.has_confidence_head,
    )


def _prompts(args: argparse.Namespace, target: Path) -> list[TaskPrompt]:
    """The prompts asked for, rendered for the target.

    Raises:
        ConfigurationError: they cannot be had.
    """
    from transformers import AutoTokenizer

    from dspark.evaluation.hub import SOURCES, read_hub_tasks
    from dspark.evaluation.tasks import encode_prompts, in_turns, read_files, subsample

    if args.hub and args.prompts:
        raise ConfigurationError("--hub and --prompts name two sources; leave one out")
    tasks = read_hub_tasks(args.tasks or list(SOURCES)) if args.hub else read_files(args.prompts)
    tasks = [task for task in tasks if task]
    if args.tasks:
        names = [task[0].task for task in tasks]
        if missing := [name for name in args.tasks if name not in names]:
            raise ConfigurationError(
                f"--tasks {' '.join(missing)}: no such file among the prompts; there are {', '.join(names)}"
            )
        tasks = [task for task in tasks if task[0].task in args.tasks]
    if not tasks:
        raise ConfigurationError("--prompts holds no prompt; name .jsonl files with lines")
    tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True)
    return encode_prompts(in_turns([subsample(task, args.limit) for task in tasks]), tokenizer)


def _print(results: Results, figures: Figures) -> None:
    from dspark.evaluation.offline.tables import accept_table, position_table, quality_table, sweep_table

    for temperature in results.temperatures:
        tables: list[Table] = [
            accept_table(figures, temperature),
            position_table(figures, temperature, is_conditional=True),
            sweep_table(figures, temperature),
            quality_table(figures, temperature, results.gamma),
        ]
        for table in tables:
            if table.rows:
                print(f"\n{table.title}")
                print_table(table.head, table.rows)


def _write_report(directory: Path, results: Results, figures: Figures, report: Report) -> None:
    """Write the four files.

    Raises:
        ConfigurationError: one cannot be written.
    """
    from dspark.evaluation.offline.report import page_of
    from dspark.evaluation.offline.results import FILE, results_text
    from dspark.evaluation.page import html_of, markdown_of

    write = functools.partial(write_text, "--report")
    metrics = replace(report, figures=figures.as_dict()).document()
    write(directory / FILE, results_text(results))
    write(directory / "metrics.json", json.dumps(metrics, indent=1, ensure_ascii=False) + "\n")
    page = page_of(results, figures)
    write(directory / "report.html", html_of(page))
    write(directory / "report.md", markdown_of(page, "report.html"))
    print(f"report in {directory / 'report.html'}")


def _threshold(text: str) -> float:
    value = non_negative_float(text)
    if value >= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0 and below 1")
    return value
