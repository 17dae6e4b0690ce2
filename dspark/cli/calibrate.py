"""`dspark calibrate`: refits a drafter's confidences on rounds that it really drafts."""

from __future__ import annotations

import argparse
import asyncio
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dspark.cache import default_cache_dir
from dspark.cli.bench_options import (
    Models,
    add_model_options,
    add_prompt_options,
    need_drafter,
    positive,
    positive_float,
    read_models,
    read_prompts,
)
from dspark.cli.bench_report import print_table, progress
from dspark.cli.exports import Export, add_export_option, write_export
from dspark.errors import ConfigurationError
from dspark.models.method import is_prompt_lookup
from dspark.scheduling.formats import sglang, tensorrt_llm

if TYPE_CHECKING:
    from dspark.evaluation.calibration_fit import DecodedBlocks, Fit
    from dspark.models.calibration import Calibration

_TOKENS_PER_STREAM = 2048
_SETS = ("greedy", "sampled")
_FORMATS = {"sglang": "SGLang's STS calibration", "tensorrt-llm": "TensorRT-LLM's"}


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
        "--temperature", type=positive_float, default=1.0, help="of the sampled set (default: 1)"
    )
    parser.add_argument("--streams", type=positive, default=8, help="prompts side by side (default: 8)")
    parser.add_argument("--dry-run", action="store_true", help="leave calibration.json as it is")
    add_export_option(parser, "temperatures, fitted without offsets,", _FORMATS)
    parser.add_argument(
        "--export-set",
        choices=_SETS,
        default="sampled",
        help="what exported temperatures are fitted on, as their files hold one set (default: sampled)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Decode, fit, print, write."""
    from dspark.models.calibration import Calibration
    from dspark.models.config_file import read_config

    models = read_models(args)
    drafter = need_drafter(models)
    if is_prompt_lookup(drafter):
        raise ConfigurationError(
            "--drafter prompt-lookup counts its chances as it drafts; name a drafter checkpoint to calibrate"
        )
    gamma = read_config(drafter).gamma
    decoded = asyncio.run(_decode_and_fit(args, models, Calibration.read(drafter, gamma)))
    fits = {name: fitted for name, (_, fitted) in decoded.items()}
    for name, fitted in fits.items():
        rows = [
            [when, *(f"{100 * error:.1f}" for error in errors)]
            for when, errors in (("before", fitted.before), ("after", fitted.after))
        ]
        head = [f"ECE in %, {name}, {fitted.num_blocks} blocks", *(str(place + 1) for place in range(gamma))]
        print_table(head, rows)
    if not args.dry_run:
        Calibration(fits["greedy"].scaling, fits["sampled"].scaling).write(drafter)
        print(f"written to {drafter / 'calibration.json'}")
    if args.export:
        export_temperatures(args.export, args.export_set, decoded[args.export_set][0])
    return 0


def export_temperatures(exports: Sequence[Export], name: str, blocks: DecodedBlocks) -> None:
    """Fit temperatures alone, print them, write them for other engines.

    Args:
        exports: files.
        name: of the set, "greedy" or "sampled".
        blocks: of that set.

    Raises:
        ConfigurationError: too few blocks, or a file cannot be written.
    """
    from dspark.evaluation.calibration_fit import fit_temperatures

    fitted = fit_temperatures(blocks, f"dspark calibrate, {name}")
    gamma = len(fitted.values)
    rows = [
        ["temperature", *(f"{value:.2f}" for value in fitted.values)],
        ["ECE in %, head alone", *(f"{100 * error:.1f}" for error in fitted.before)],
        ["ECE in %, temperatures", *(f"{100 * error:.1f}" for error in fitted.after)],
    ]
    print_table([f"exported, {name}", *(str(place + 1) for place in range(gamma))], rows)
    for export in exports:
        module = sglang if export.format == "sglang" else tensorrt_llm
        write_export(
            export, module.sts_calibration(fitted), functools.partial(module.read_temperatures, gamma=gamma)
        )


async def _decode_and_fit(
    args: argparse.Namespace, models: Models, in_use: Calibration
) -> dict[str, tuple[DecodedBlocks, Fit]]:
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
    decoded = {}
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
        decoded[name] = blocks, fit(blocks, own)
    engines.worker.shutdown()
    return decoded
