"""`dspark calibrate`: refits a drafter's confidences on rounds that it really drafts."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from dspark.cache import default_cache_dir
from dspark.cli.bench_options import (
    Models,
    add_model_options,
    add_prompt_options,
    need_drafter,
    non_negative_float,
    positive,
    read_models,
    read_prompts,
)
from dspark.cli.bench_report import print_table, progress

if TYPE_CHECKING:
    from dspark.evaluation.calibration_fit import Fit
    from dspark.models.calibration import Calibration

_TOKENS_PER_STREAM = 2048


def add_parser(subparsers: Any) -> None:
    """Add `dspark calibrate`."""
    parser = subparsers.add_parser(
        "calibrate",
        help="refit a drafter's confidences",
        description=(
            "Decodes prompts with every block verified in full, greedily and sampled, fits a temperature "
            "and an offset per position (sequential scaling) and writes calibration.json beside the drafter."
        ),
    )
    add_model_options(parser)
    add_prompt_options(parser, limit=None)
    parser.add_argument(
        "--tokens", type=positive, default=256, help="most tokens of an output (default: 256)"
    )
    parser.add_argument(
        "--temperature", type=non_negative_float, default=1.0, help="of the sampled set (default: 1)"
    )
    parser.add_argument("--streams", type=positive, default=8, help="prompts side by side (default: 8)")
    parser.add_argument("--dry-run", action="store_true", help="print, but write nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Decode, fit, print, write."""
    from dspark.models.calibration import Calibration
    from dspark.models.config_file import read_config

    models = read_models(args)
    drafter = need_drafter(models)
    gamma = read_config(drafter).gamma
    fits = asyncio.run(_fit_both(args, models, Calibration.read(drafter, gamma)))
    for name, fitted in fits.items():
        rows = [
            [when, *(f"{100 * error:.1f}" for error in errors)]
            for when, errors in (("before", fitted.before), ("after", fitted.after))
        ]
        head = [f"ECE in %, {name}, {fitted.num_blocks} blocks", *(str(place + 1) for place in range(gamma))]
        print_table(head, rows)
    if args.dry_run:
        return 0
    Calibration(fits["greedy"].scaling, fits["sampled"].scaling).write(drafter)
    print(f"written to {drafter / 'calibration.json'}")
    return 0


async def _fit_both(args: argparse.Namespace, models: Models, in_use: Calibration) -> dict[str, Fit]:
    from dspark.evaluation.calibration_fit import decode_blocks, fit
    from dspark.evaluation.generation import EnginePlan, load_engines

    prompts = read_prompts(args, models.target)
    progress("loading the engines")
    plan = EnginePlan(
        models.target,
        models.drafter,
        pool_tokens=args.streams * _TOKENS_PER_STREAM,
        cache_dir=default_cache_dir(),
    )
    engines = load_engines(plan)
    fits = {}
    for name, temperature, own in (
        ("greedy", 0.0, in_use.greedy),
        ("sampled", args.temperature, in_use.sampling),
    ):
        progress(f"decoding {len(prompts)} prompts, {name}")
        blocks = await decode_blocks(
            engines,
            prompts,
            temperature=temperature,
            in_use=own,
            max_new_tokens=args.tokens,
            streams=args.streams,
        )
        fits[name] = fit(blocks, own)
    engines.worker.shutdown()
    return fits
