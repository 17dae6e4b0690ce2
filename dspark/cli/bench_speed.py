"""`dspark bench speed`: plain, DSpark, transformers and its prompt lookup on the same weights and prompts."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from dspark.cache import default_cache_dir
from dspark.cli.bench_beside import Other, Schedule, read_others
from dspark.cli.bench_options import (
    INCOMPLETE_EXIT_CODE,
    Models,
    add_model_options,
    add_prompt_options,
    add_report_option,
    positive,
    read_models,
    read_prompts,
)
from dspark.cli.bench_report import finish, progress
from dspark.cli.bench_speed_report import Measured, make_report, print_figures
from dspark.cli.options import add_lookup_option
from dspark.errors import ConfigurationError
from dspark.rounds.policies import DRAFTING_POLICIES

if TYPE_CHECKING:
    from dspark.engine.target import TargetEngine
    from dspark.evaluation.generation import Engines
    from dspark.evaluation.speed import System
    from dspark.evaluation.stock import StockModel

_SYSTEMS = ("plain", "dspark", "transformers", "prompt lookup")
_RAW_PASSES = 5
_TOKENS_PER_STREAM = 2048


def add_parser(subparsers: Any) -> None:
    """Add `dspark bench speed`."""
    parser = subparsers.add_parser("speed", help="tokens per second, side by side", description=__doc__)
    add_model_options(parser)
    add_prompt_options(parser, limit=8)
    parser.add_argument(
        "--tokens", type=positive, default=128, help="most tokens of an output (default: 128)"
    )
    parser.add_argument("--repeats", type=positive, default=3, help="passes over the prompts (default: 3)")
    parser.add_argument(
        "--streams", type=positive, default=1, help="prompts decoded side by side (default: 1)"
    )
    parser.add_argument(
        "--policy",
        choices=DRAFTING_POLICIES,
        default="auto",
        help="how DSpark schedules (default: auto)",
    )
    add_lookup_option(parser)
    parser.add_argument(
        "--beside",
        action="append",
        default=[],
        metavar="DIR|prompt-lookup[@POLICY]",
        help="another drafter that decodes the same prompts in the same run, scheduled as --policy says, or "
        "by a policy of its own: DIR@fixed verifies whole blocks, DIR@fixed:3 three drafts of each; may be "
        "given several times",
    )
    parser.add_argument(
        "--without-transformers",
        action="store_true",
        help="leave out transformers and its prompt lookup, which take most of the time",
    )
    add_report_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print, judge."""
    models = read_models(args)
    beside = _beside(args, models)
    measured = asyncio.run(_measure(args, models, beside))
    report = make_report(args, models, measured)
    print_figures(report)
    code = finish(report, args.json)
    if models.drafter is None:
        print("dspark bench speed: there is no drafter, so DSpark was not measured; name one with --drafter")
        return INCOMPLETE_EXIT_CODE
    return code


def _beside(args: argparse.Namespace, models: Models) -> list[Other]:
    """The other drafters.

    Raises:
        ConfigurationError: they cannot be read, or there is no drafter to compare them with.
    """
    others = read_others(args, _SYSTEMS)
    if others and models.drafter is None:
        raise ConfigurationError("--beside compares with --drafter; name that, too")
    return others


async def _measure(args: argparse.Namespace, models: Models, beside: Sequence[Other]) -> Measured:
    from dspark.engine.draft_loading import tapped_layers
    from dspark.engine.huge_pages import huge_page_share
    from dspark.evaluation.generation import EnginePlan, LocalDecoder, load_engines
    from dspark.evaluation.raw_matmul import RawMatmuls
    from dspark.evaluation.speed import LoopSystem, in_groups, measure
    from dspark.evaluation.stock import StockModel

    progress("loading the engines")
    pool_tokens = args.streams * _TOKENS_PER_STREAM
    plain = load_engines(
        EnginePlan(models.target, None, pool_tokens=pool_tokens, cache_dir=default_cache_dir())
    )
    dtype = plain.target.info.dtype
    groups = in_groups(read_prompts(args, models.target), args.streams)
    measured = Measured(plain.target.info, groups)
    stock = StockModel(models.target, dtype)
    raw = RawMatmuls(stock.model, default_cache_dir())

    def time_matmuls(_repeat: int) -> None:
        measured.raw_s.extend(plain.worker.post(raw.seconds, _RAW_PASSES).result())

    async with AsyncExitStack() as stack:
        plain_decoder = await stack.enter_async_context(LocalDecoder(plain, policy="off"))
        systems: list[System] = [LoopSystem("plain", plain_decoder, plain)]
        measured.rounds["plain"] = plain_decoder.rounds
        own = [] if models.drafter is None else [Other("dspark", models.drafter, Schedule(args.policy))]
        targets: dict[tuple[int, ...], TargetEngine] = {}
        for other in (*own, *beside):
            # One copy of the weights for all that read the same layers: how fast weights are read depends on
            # where in memory they lie.
            layers = tapped_layers(other.drafter)
            engines = load_engines(
                EnginePlan(
                    models.target,
                    other.drafter,
                    dtype=dtype,
                    pool_tokens=pool_tokens,
                    cache_dir=default_cache_dir(),
                    with_lookup=args.lookup != "off",
                ),
                plain.worker,
                target=targets.get(layers),
            )
            targets[layers] = engines.target
            decoder = await stack.enter_async_context(LocalDecoder(engines, policy=other.schedule.planner()))
            systems.append(LoopSystem(other.name, decoder, engines))
            measured.rounds[other.name] = decoder.rounds
        if not args.without_transformers:
            systems.extend(_stock_systems(args, stock, plain))
        progress(f"decoding {sum(map(len, groups))} prompts, {args.repeats} times, by {len(systems)} systems")
        measured.samples = await measure(
            systems, groups, max_new_tokens=args.tokens, repeats=args.repeats, after_group=time_matmuls
        )
        measured.huge_page_share = huge_page_share()
    plain.worker.shutdown()
    return measured


def _stock_systems(args: argparse.Namespace, stock: StockModel, plain: Engines) -> list[System]:
    from dspark.evaluation.speed import LOOKUP_TOKENS, StockSystem

    eos = plain.target.info.eos_token_ids
    systems: list[System] = [StockSystem("transformers", stock, plain.worker, eos)]
    if args.streams == 1:  # it takes one prompt at a time
        systems.append(StockSystem("prompt lookup", stock, plain.worker, eos, prompt_lookup=LOOKUP_TOKENS))
    return systems
