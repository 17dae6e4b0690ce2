"""`dspark bench pareto`: plain, full blocks and scheduled drafts, at 1 to 64 streams, on the real engines."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from dspark.cache import default_cache_dir
from dspark.cli.bench_options import (
    Models,
    add_model_options,
    add_prompt_options,
    add_report_option,
    need_drafter,
    positive,
    read_models,
    read_prompts,
)
from dspark.cli.bench_report import Report, finish, print_table, progress
from dspark.evaluation.verdict import Check, at_least, at_most, largest_rise
from dspark.rounds.policies import POLICIES

if TYPE_CHECKING:
    from dspark.evaluation.pareto import LoadPoint, Pass

LEAST_VS_BETTER = 0.98
LEAST_BEST_GAIN = 1.15
# Drafts per request and round by which it may rise with load and still be noise.
MOST_RISE = 0.2

_STREAMS = (1, 2, 4, 8, 16, 32, 64)
_LEAST_PROMPTS = 12
_TOKENS_PER_STREAM = 1024
_BASELINES = ("off", "fixed")


def add_parser(subparsers: Any) -> None:
    """Add `dspark bench pareto`."""
    parser = subparsers.add_parser("pareto", help="policies from 1 to 64 streams", description=__doc__)
    add_model_options(parser)
    add_prompt_options(parser, limit=8)
    parser.add_argument("--tokens", type=positive, default=64, help="most tokens of an output (default: 64)")
    parser.add_argument("--repeats", type=positive, default=1, help="passes over each load (default: 1)")
    parser.add_argument(
        "--streams",
        type=positive,
        nargs="+",
        default=list(_STREAMS),
        metavar="N",
        help=f"loads, lightest first (default: {' '.join(map(str, _STREAMS))})",
    )
    parser.add_argument(
        "--policies",
        nargs="+",
        choices=[name for name in POLICIES if name not in _BASELINES],
        default=["early-stop", "barrier"],
        help="what is compared with plain decoding and full blocks; the verdict is about the first "
        "(default: early-stop barrier)",
    )
    add_report_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print, judge."""
    from dspark.evaluation.pareto import ratios_of

    models = read_models(args)
    need_drafter(models)
    loads = asyncio.run(_measure(args, models))
    for streams, points in loads.items():
        _print_load(streams, points)
    ratios = {name: value for policy in args.policies for name, value in ratios_of(loads, policy).items()}
    report = Report(
        name="pareto",
        setup={
            "target": models.target.name,
            "drafter": models.drafter.name if models.drafter else None,
            "tokens": args.tokens,
            "repeats": args.repeats,
            "policies": args.policies,
        },
        figures={
            str(streams): {policy: point.as_dict() for policy, point in points.items()}
            for streams, points in loads.items()
        },
        ratios=ratios,
        checks=_checks(loads, ratios, args.policies[0]),
    )
    return finish(report, args.json)


async def _measure(args: argparse.Namespace, models: Models) -> dict[int, dict[str, LoadPoint]]:
    from dspark.evaluation.generation import EnginePlan, LocalDecoder, load_engines
    from dspark.evaluation.pareto import point_of, prompts_of_load, run_pass, turns

    progress("loading the engines")
    pool_tokens = max(args.streams) * _TOKENS_PER_STREAM
    engines = load_engines(
        EnginePlan(models.target, models.drafter, pool_tokens=pool_tokens, cache_dir=default_cache_dir())
    )
    prompts, policies = read_prompts(args, models.target), [*_BASELINES, *args.policies]
    loads = {}
    async with AsyncExitStack() as stack:
        decoders = {
            policy: await stack.enter_async_context(LocalDecoder(engines, policy=policy))
            for policy in policies
        }
        for number, streams in enumerate(args.streams):
            progress(f"{streams} streams")
            passes: dict[str, list[Pass]] = {policy: [] for policy in policies}
            for repeat in range(args.repeats):
                for policy in turns(policies, number + repeat):
                    one = await run_pass(
                        decoders[policy],
                        prompts_of_load(prompts, streams, _LEAST_PROMPTS),
                        streams,
                        max_new_tokens=args.tokens,
                        eos_token_ids=engines.target.info.eos_token_ids,
                        label=f"{policy}-{streams}-{repeat}-",
                    )
                    passes[policy].append(one)
            loads[streams] = {policy: point_of(passes[policy]) for policy in policies}
    engines.worker.shutdown()
    return loads


def _checks(
    loads: Mapping[int, Mapping[str, LoadPoint]], ratios: Mapping[str, float], policy: str
) -> list[Check]:
    """Never slower than the better of plain and full blocks, somewhere faster than both, and fewer drafts."""
    better = {streams: ratios[f"{policy}_vs_better, {streams} streams"] for streams in loads}
    checks = [
        at_least(f"{policy} vs better, {streams} streams", ratio, LEAST_VS_BETTER)
        for streams, ratio in better.items()
    ]
    checks.append(at_least(f"{policy} vs better, best load", max(better.values()), LEAST_BEST_GAIN))
    verified = [points[policy].mean_verified for points in loads.values()]
    checks.append(at_most(f"{policy}: rise of verified with load", largest_rise(verified), MOST_RISE))
    return checks


def _print_load(streams: int, points: Mapping[str, LoadPoint]) -> None:
    head = [f"{streams} streams", "tok/s", "tok/s/user", "committed", "verified", "batch"]
    rows = [
        [
            policy,
            f"{point.tokens_per_s:.1f}",
            f"{point.user_tokens_per_s:.1f}",
            f"{point.mean_committed:.2f}",
            f"{point.mean_verified:.2f}",
            f"{point.batch_tokens:.1f}",
        ]
        for policy, point in points.items()
    ]
    print_table(head, rows)
