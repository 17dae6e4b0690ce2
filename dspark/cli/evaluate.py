"""`dspark evaluate`: what a drafter's blocks are worth, task by task."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from dspark.cache import default_cache_dir
from dspark.cli.bench_options import (
    add_model_options,
    add_prompt_options,
    add_report_option,
    need_drafter,
    non_negative_float,
    positive,
    read_models,
    read_prompts,
)
from dspark.cli.bench_report import Report, finish, print_table, progress
from dspark.cli.options import add_lookup_option

_TOKENS_PER_STREAM = 2048


def add_parser(subparsers: Any) -> None:
    """Add `dspark evaluate`."""
    parser = subparsers.add_parser(
        "evaluate",
        help="measure how good a drafter is",
        description=(
            "Decodes prompts with full blocks and as served, and prints by task: accept_len (DeepSpec's mean "
            "accepted length, bonus token included), the acceptance at each position given that all drafts "
            "before it were accepted, and, as served, the tokens committed and the drafts verified per "
            "round. Above temperature 0 also the drafts accepted per round by rejection sampling and, on the "
            "same prompts, by coupled sampling, which seeded requests use."
        ),
    )
    add_model_options(parser)
    add_prompt_options(parser, limit=None)
    parser.add_argument(
        "--tokens", type=positive, default=256, help="most tokens of an output (default: 256)"
    )
    parser.add_argument(
        "--temperature", type=non_negative_float, default=0.0, help="0 is greedy (default: 0)"
    )
    parser.add_argument("--streams", type=positive, default=8, help="prompts side by side (default: 8)")
    # What is measured is the drafter.
    add_lookup_option(parser, default="off")
    add_report_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from dspark.evaluation.drafter_figures import DecodePlan, measure_drafter
    from dspark.evaluation.generation import EnginePlan, load_engines

    models = read_models(args)
    drafter = need_drafter(models)
    prompts = read_prompts(args, models.target)
    progress("loading the engines")
    plan = EnginePlan(
        models.target,
        drafter,
        pool_tokens=args.streams * _TOKENS_PER_STREAM,
        cache_dir=default_cache_dir(),
        with_lookup=args.lookup == "on",
    )
    engines = load_engines(plan)
    times = "twice" if args.temperature == 0 else "three times"
    progress(f"decoding {len(prompts)} prompts {times}")
    decoding = DecodePlan(args.tokens, args.temperature, args.streams)
    figures = asyncio.run(measure_drafter(engines, prompts, decoding))
    engines.worker.shutdown()
    rows = [
        [
            one.task,
            str(one.num_prompts),
            f"{one.accept_len:.2f}",
            f"{one.mean_committed:.2f}",
            f"{one.mean_scheduled:.2f}",
            " ".join(f"{100 * share:.0f}" for share in one.acceptance),
        ]
        for one in figures
    ]
    print_table(
        ["task", "prompts", "accept_len", "committed", "scheduled", "acceptance by position, %"], rows
    )
    if args.temperature > 0:
        rules = [
            [one.task, f"{one.mean_accepted:.3f}", f"{one.mean_coupled:.3f}"]
            for one in figures
            if one.mean_coupled is not None
        ]
        print_table(["drafts accepted per round", "rejection", "coupled"], rules)
    setup = {
        "target": models.target.name,
        "drafter": drafter.name,
        "lookup": args.lookup == "on",
        "dtype": engines.target.info.dtype,
        "tokens": args.tokens,
        "temperature": args.temperature,
        "streams": args.streams,
    }
    name = "evaluate" if args.temperature == 0 else f"evaluate-t{args.temperature:g}"
    return finish(Report(name, setup, {one.task: one.as_dict() for one in figures}), args.json)
