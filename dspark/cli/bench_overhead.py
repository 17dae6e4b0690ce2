"""`dspark bench overhead`: the services over gRPC against the same round loop in one process."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dspark.cache import default_cache_dir
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
from dspark.evaluation.verdict import Check, at_least

if TYPE_CHECKING:
    from dspark.cli.bench_served import SessionClient
    from dspark.decoding.types import VerifierInfo
    from dspark.evaluation.speed import Output, Sample
    from dspark.evaluation.tasks import TaskPrompt

LEAST_SERVICES_VS_IN_PROCESS = 0.95

_SERVICES, _IN_PROCESS = "services", "in process"
_TOKENS_PER_STREAM = 2048


def add_parser(subparsers: Any) -> None:
    """Add `dspark bench overhead`."""
    parser = subparsers.add_parser("overhead", help="services against one process", description=__doc__)
    add_model_options(parser)
    add_prompt_options(parser, limit=8)
    parser.add_argument(
        "--tokens", type=positive, default=128, help="most tokens of an output (default: 128)"
    )
    parser.add_argument("--repeats", type=positive, default=3, help="passes over the prompts (default: 3)")
    parser.add_argument(
        "--streams", type=positive, default=16, help="prompts decoded side by side (default: 16)"
    )
    add_report_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print, judge."""
    models = read_models(args)
    report = asyncio.run(_measure(args, models))
    rows = [
        [name, *(f"{speed[column]:.1f}" for column in ("overall", "min", "max"))]
        for name, speed in report.figures["tokens_per_second"].items()
    ]
    print_table(["tokens/s", "overall", "min", "max"], rows)
    code = finish(report, args.json)
    if models.drafter is None:
        print("dspark bench overhead: there is no drafter, so plain decoding was measured; see --drafter")
        return INCOMPLETE_EXIT_CODE
    return code


class ServedSystem:
    """The services, asked by the client of this process."""

    name = _SERVICES

    def __init__(self, client: SessionClient, eos_token_ids: Sequence[int]) -> None:
        self._client = client
        self._eos_token_ids = tuple(eos_token_ids)
        self._num_calls = 0

    async def decode(self, prompts: Sequence[TaskPrompt], max_new_tokens: int) -> list[Output]:
        """See `System`."""
        from dspark.evaluation.generation import Generation
        from dspark.evaluation.requests import make_requests
        from dspark.evaluation.speed import Output

        self._num_calls += 1
        requests = make_requests(
            prompts, max_new_tokens, self._eos_token_ids, label=f"served-{self._num_calls}-"
        )
        deltas = await self._client.generate(requests)
        outputs = [Generation(one.request_id, tuple(deltas[one.request_id])) for one in requests]
        return [Output(one.token_ids, one) for one in outputs]


async def _measure(args: argparse.Namespace, models: Models) -> Report:
    import torch

    from dspark.cli.bench_served import served
    from dspark.evaluation.generation import EnginePlan, LocalDecoder, load_engines
    from dspark.evaluation.speed import LoopSystem, in_groups, measure
    from dspark.rounds.local import EngineWorker

    policy = "off" if models.drafter is None else "auto"
    threads = torch.get_num_threads()
    pool_tokens = args.streams * _TOKENS_PER_STREAM
    prompts = _filled(read_prompts(args, models.target), args.streams)
    groups = in_groups(prompts, args.streams)
    async with served(models, policy=policy, threads=threads, pool_tokens=pool_tokens) as client:
        progress("loading the engines of this process")
        # In a thread of their own, as a server's must be: its loop takes requests meanwhile.
        engines = load_engines(
            EnginePlan(
                models.target,
                models.drafter,
                pool_tokens=pool_tokens,
                cache_dir=default_cache_dir(),
                with_lookup=True,
            ),
            EngineWorker("engines"),
        )
        info = engines.target.info
        async with LocalDecoder(engines, policy=policy) as decoder:
            systems = (LoopSystem(_IN_PROCESS, decoder, engines), ServedSystem(client, info.eos_token_ids))
            progress(
                f"decoding {len(groups)} groups of {args.streams} prompts, {args.repeats} times, by both"
            )
            samples = await measure(systems, groups, max_new_tokens=args.tokens, repeats=args.repeats)
    engines.worker.shutdown()
    setup = {
        "target": models.target.name,
        "drafter": models.drafter.name if models.drafter else None,
        "dtype": info.dtype,
        "threads": threads,
        "prompts": len(prompts),
        "tokens": args.tokens,
        "repeats": args.repeats,
        "streams": args.streams,
        "policy": policy,
    }
    return _report(setup, samples, groups, info)


def _filled(prompts: Sequence[TaskPrompt], size: int) -> list[TaskPrompt]:
    """The prompts, begun again until the last group is as large as the others."""
    count = -(-len(prompts) // size) * size
    return [prompts[number % len(prompts)] for number in range(count)]


def _report(
    setup: dict[str, Any],
    samples: Sequence[Sample],
    groups: Sequence[Sequence[TaskPrompt]],
    info: VerifierInfo,
) -> Report:
    from dspark.evaluation import speed_figures as figures

    speeds = {name: figures.system_speed(samples, name) for name in (_IN_PROCESS, _SERVICES)}
    ratio = speeds[_SERVICES].overall / speeds[_IN_PROCESS].overall
    differing = figures.differing_prompts(samples, groups, first=_IN_PROCESS, second=_SERVICES)
    checks: list[Check] = [at_least("services_vs_in_process", ratio, LEAST_SERVICES_VS_IN_PROCESS)]
    checks.append(figures.same_text_check("text of services and one process", differing, info))
    return Report(
        name="overhead",
        setup={**setup, "is_exact": info.is_exact},
        figures={
            "tokens_per_second": {name: speed.as_dict() for name, speed in speeds.items()},
            "mean_committed": {
                name: figures.committed_by_task(samples, groups, system=name) for name in speeds
            },
            "differing_prompts": differing,
        },
        ratios={"services_vs_in_process": ratio},
        checks=checks,
    )
