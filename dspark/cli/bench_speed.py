"""`dspark bench speed`: plain, DSpark, transformers and its prompt lookup on the same weights and prompts."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median
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
from dspark.cli.bench_report import Report, finish, print_table, progress
from dspark.cli.options import add_lookup_option
from dspark.errors import ConfigurationError
from dspark.evaluation.verdict import Check, at_least, at_most
from dspark.rounds.policies import DRAFTING_POLICIES

if TYPE_CHECKING:
    from dspark.decoding.types import VerifierInfo
    from dspark.engine.target import TargetEngine
    from dspark.evaluation.generation import Engines, TimedRound
    from dspark.evaluation.speed import Sample, System
    from dspark.evaluation.stock import StockModel
    from dspark.evaluation.tasks import TaskPrompt

# Ratios within one run, so that they hold on any machine of this kind.
LEAST_DSPARK_VS_PLAIN = 1.3
LEAST_DSPARK_VS_TRANSFORMERS = 2.2
MOST_PLAIN_VS_RAW_MATMUL = 1.35

_SYSTEMS = ("plain", "dspark", "transformers", "prompt lookup")
_NOTHING: dict[str, Any] = {"mean_committed": {}, "round_ms": {}, "differing_prompts": None}
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


@dataclass(slots=True)
class _Measured:
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


def run(args: argparse.Namespace) -> int:
    """Measure, print, judge."""
    models = read_models(args)
    beside = _beside(args, models)
    measured = asyncio.run(_measure(args, models, beside))
    report = _report(args, models, measured)
    _print_figures(report)
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


async def _measure(args: argparse.Namespace, models: Models, beside: Sequence[Other]) -> _Measured:
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
    measured = _Measured(plain.target.info, groups)
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


def _of_rounds(measured: _Measured, name: str) -> dict[str, Any]:
    """Figures of a system that drafts, besides its speed."""
    from dspark.evaluation import speed_figures as figures

    samples, groups = measured.samples, measured.groups
    return {
        "mean_committed": figures.committed_by_task(samples, groups, system=name),
        "round_ms": figures.round_times(measured.rounds[name]),
        "differing_prompts": figures.differing_prompts(samples, groups, first="plain", second=name),
    }


def _report(args: argparse.Namespace, models: Models, measured: _Measured) -> Report:
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


def _print_figures(report: Report) -> None:
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
