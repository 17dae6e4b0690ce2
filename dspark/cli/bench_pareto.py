"""`dspark bench pareto`: plain, full blocks and scheduled drafts, at 1 to 64 streams, on the real engines.

At each load every policy has so many streams of its own, and all of them take turns of a few rounds over
the same engines, so that a machine that is slower for a while is slower for all.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path
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
from dspark.cli.exports import write_text
from dspark.cli.pareto_plot import panels_of
from dspark.evaluation.chart import svg
from dspark.evaluation.verdict import Check, at_least, at_most, largest_rise
from dspark.rounds.policies import POLICIES

if TYPE_CHECKING:
    from dspark.evaluation.pareto import Load, LoadPoint, Ratio

LEAST_VS_BETTER = 0.98
LEAST_BEST_GAIN = 1.15
# Drafts per request and round by which it may rise with load and still be noise.
MOST_RISE = 0.2

_STREAMS = (1, 2, 3, 4, 6, 8, 16, 32, 64)
_TOKENS_PER_STREAM = 1024
_BASELINES = ("off", "fixed")

# By policy, then what it is held against.
Ratios = Mapping[str, Mapping[str, "Ratio"]]


def add_parser(subparsers: Any) -> None:
    """Add `dspark bench pareto`."""
    parser = subparsers.add_parser(
        "pareto",
        help="policies from 1 to 64 streams",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_options(parser)
    add_prompt_options(parser, limit=8)
    parser.add_argument("--tokens", type=positive, default=64, help="most tokens of an output (default: 64)")
    parser.add_argument(
        "--seconds", type=positive, default=30, help="of each policy at each load (default: 30)"
    )
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
        default=["auto"],
        help="what is compared with plain decoding and full blocks; the verdict is about the first "
        "(default: auto)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the figure")
    add_report_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print, judge."""
    from dspark.evaluation.pareto import point_of, ratios_of

    models = read_models(args)
    need_drafter(models)
    loads = asyncio.run(_measure(args, models))
    points = {
        streams: {policy: point_of(slices, streams) for policy, slices in load.items()}
        for streams, load in loads.items()
    }
    ratios = {
        streams: {policy: ratios_of(load, policy) for policy in args.policies}
        for streams, load in loads.items()
    }
    for streams in loads:
        _print_load(streams, points[streams], ratios[streams])
    first = args.policies[0]
    if args.plot is not None:
        write_text("--plot", args.plot, svg(panels_of(points)))
        print(f"drawn to {args.plot}")
    report = Report(
        name="pareto",
        setup={
            "target": models.target.name,
            "drafter": models.drafter.name if models.drafter else None,
            "tokens": args.tokens,
            "seconds": args.seconds,
            "policies": args.policies,
        },
        figures={
            str(streams): {
                policy: point.as_dict() | {f"vs_{name}_error": one.error for name, one in by_name.items()}
                for policy, point in by_policy.items()
                for by_name in [ratios[streams].get(policy, {})]
            }
            for streams, by_policy in points.items()
        },
        ratios={
            f"{policy}_vs_{name}, {streams} streams": one.value
            for streams, by_policy in ratios.items()
            for policy, by_name in by_policy.items()
            for name, one in by_name.items()
        },
        checks=_checks(
            {streams: by_policy[first]["better"].value for streams, by_policy in ratios.items()},
            [by_policy[first].mean_verified for by_policy in points.values()],
            first,
        ),
    )
    return finish(report, args.json)


async def _measure(args: argparse.Namespace, models: Models) -> dict[int, Load]:
    from dspark.evaluation.generation import EnginePlan, load_engines
    from dspark.evaluation.pareto import measure_load

    progress("loading the engines")
    policies = [*_BASELINES, *args.policies]
    pool_tokens = len(policies) * max(args.streams) * _TOKENS_PER_STREAM
    engines = load_engines(
        EnginePlan(
            models.target,
            models.drafter,
            pool_tokens=pool_tokens,
            cache_dir=default_cache_dir(),
            with_lookup=True,
        )
    )
    loads = {}
    for streams in args.streams:
        progress(f"{streams} streams")
        loads[streams] = await measure_load(
            engines,
            policies,
            read_prompts(args, models.target),
            streams=streams,
            max_new_tokens=args.tokens,
            eos_token_ids=engines.target.info.eos_token_ids,
            seconds=args.seconds,
        )
    engines.worker.shutdown()
    return loads


def _checks(better: Mapping[int, float], verified: list[float], policy: str) -> list[Check]:
    """Never slower than the better of plain and full blocks, somewhere faster than both, and fewer drafts."""
    checks = [
        at_least(f"{policy} vs better, {streams} streams", ratio, LEAST_VS_BETTER)
        for streams, ratio in better.items()
    ]
    checks.append(at_least(f"{policy} vs better, best load", max(better.values()), LEAST_BEST_GAIN))
    checks.append(at_most(f"{policy}: rise of verified with load", largest_rise(verified), MOST_RISE))
    return checks


def _print_load(streams: int, points: Mapping[str, LoadPoint], ratios: Ratios) -> None:
    head = [f"{streams} streams", "tok/s", "tok/s/user", "vs better", "committed", "verified", "batch"]
    rows = [
        [
            policy,
            f"{point.tokens_per_s:.1f}",
            f"{point.user_tokens_per_s:.1f}",
            _in_words(ratios[policy]["better"]) if policy in ratios else "",
            f"{point.mean_committed:.2f}",
            f"{point.mean_verified:.2f}",
            f"{point.batch_tokens:.1f}",
        ]
        for policy, point in points.items()
    ]
    print_table(head, rows)


def _in_words(ratio: Ratio) -> str:
    return f"{ratio.value:.3f} ± {ratio.error:.3f}"
