"""`dspark bench scheduler --simulate`: runs a study, prints a table per load, judges."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from dspark.cli.bench_report import Report, finish, print_table, progress
from dspark.errors import ConfigurationError
from dspark.evaluation.simulation.curves import machine_of
from dspark.evaluation.simulation.figures import LoadFigures, figures_of
from dspark.evaluation.simulation.luck import Luck
from dspark.evaluation.simulation.report import Study, checks_of, label_of, ratios_of
from dspark.evaluation.simulation.runner import MTP_1, Scenario, simulate
from dspark.evaluation.simulation.trace import (
    OUTPUT_LEN,
    PROMPT_LEN,
    TraceRequest,
    TraceShape,
    read_trace,
    synthetic_trace,
    write_trace,
)
from dspark.rounds.policies import POLICIES

_NUM_REQUESTS = 200
_CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_LONGEST_CONTEXT = 1 << 20

_NOTES = (
    "time is virtual: planning, the network and the store cost nothing in it",
    "the policies know what a context costs where the curve has several, as the engine measures it",
)
_NO_VERDICT = (
    "no verdict: it takes the policies off, fixed and one of auto, early-stop, barrier and retrospective, "
    "or the cohorts 1, 2 and auto"
)


@dataclass(frozen=True, slots=True)
class Load:
    """One load of a study: streams kept busy, or the arrivals of a trace."""

    name: str
    luck: Luck
    concurrency: int | None


def run_simulation(args: argparse.Namespace) -> int:
    """Simulate, print, judge."""
    machine, loads = machine_of(args.curve or "h100-like"), read_loads(args)
    policies = args.policies or [*POLICIES, MTP_1]
    print(
        f"{machine.name} ({machine.origin}), gamma {args.gamma}, {len(loads[0].luck.trace)} requests, "
        f"seed {args.seed}"
    )
    study = {}
    for load in loads:
        progress(f"simulating {load.name}")
        scenario = Scenario(
            machine,
            load.luck,
            0.5 if args.threshold is None else args.threshold,
            is_shared=args.separate is None,
        )
        study[load.name] = {
            label_of(policy, cohorts): figures_of(
                simulate(replace(scenario, cohorts=cohorts), policy, load.concurrency)
            )
            for policy in policies
            for cohorts in args.cohorts or ["1"]
        }
        _print_load(load.name, study[load.name])
    setup = {
        "machine": asdict(machine),
        "gamma": args.gamma,
        "requests": len(loads[0].luck.trace),
        "trace": args.trace.name if args.trace else "synthetic",
        "seed": args.seed,
        "difficulty": args.difficulty or 0.0,
        "confidence_offset": args.confidence_offset or 0.0,
        "policies": policies,
        "cohorts": args.cohorts or ["1"],
        "separate hardware": args.separate is not None,
    }
    return finish(_report(setup, study), args.json)


def read_loads(args: argparse.Namespace) -> list[Load]:
    """The loads asked for, lightest first.

    Raises:
        ConfigurationError: options contradict each other, or the trace cannot be used.
    """
    if args.trace is not None:
        return _recorded_loads(args)
    traces = {
        rate: synthetic_trace(
            TraceShape(
                args.requests or _NUM_REQUESTS,
                rate,
                prompt_len=args.prompt_len or PROMPT_LEN,
                output_len=args.output_len or OUTPUT_LEN,
                difficulty=args.difficulty or 0.0,
            ),
            args.seed,
        )
        for rate in args.rate or [None]
    }
    if args.save_trace is not None:
        _save(args, list(traces.values()))
    if args.rate is None:
        return _busy(_luck(args, traces[None]), args.concurrency or _CONCURRENCIES)
    return [Load(f"{rate:g} requests/s", _luck(args, trace), None) for rate, trace in traces.items()]


def _save(args: argparse.Namespace, traces: Sequence[Sequence[TraceRequest]]) -> None:
    if len(traces) > 1:
        raise ConfigurationError(f"--save-trace {args.save_trace} is for one trace; give one --rate only")
    write_trace(traces[0], args.save_trace)


def _recorded_loads(args: argparse.Namespace) -> list[Load]:
    for option in ("rate", "prompt_len", "output_len", "difficulty", "save_trace"):
        if getattr(args, option) is not None:
            name = option.replace("_", "-")
            raise ConfigurationError(f"--{name} is about a synthetic trace; leave it or --trace out")
    trace = read_trace(args.trace)
    if args.requests is not None and args.requests > len(trace):
        raise ConfigurationError(
            f"--requests is {args.requests} and --trace {args.trace} holds {len(trace)}; ask for at most that"
        )
    trace = trace[: args.requests]
    longest = max(one.prompt_len + one.output_len for one in trace)
    if longest > _LONGEST_CONTEXT:
        raise ConfigurationError(
            f"--trace {args.trace} holds a request of {longest} tokens; shorten it to {_LONGEST_CONTEXT}"
        )
    luck = _luck(args, trace)
    return [Load("as recorded", luck, None)] if args.concurrency is None else _busy(luck, args.concurrency)


def _busy(luck: Luck, concurrencies: Sequence[int]) -> list[Load]:
    return [Load(f"{count} streams", luck, count) for count in concurrencies]


def _luck(args: argparse.Namespace, trace: Sequence[TraceRequest]) -> Luck:
    return Luck(trace, seed=args.seed, gamma=args.gamma, confidence_offset=args.confidence_offset or 0.0)


def _report(setup: dict[str, object], study: Study) -> Report:
    figures = {
        load: {policy: one.as_dict() for policy, one in by_policy.items()}
        for load, by_policy in study.items()
    }
    checks = checks_of(study)
    notes = _NOTES if checks else (*_NOTES, _NO_VERDICT)
    return Report("scheduler-simulation", setup, figures, ratios_of(study), checks, notes)


def _print_load(name: str, by_policy: dict[str, LoadFigures]) -> None:
    head = [
        name,
        "tok/s",
        "tok/s/user",
        "TTFT p50",
        "p99 ms",
        "token p50",
        "p99 ms",
        "committed",
        "drafted",
        "verified",
        "waste",
        "batch",
        "items/real s",
    ]
    rows = [
        [
            policy,
            f"{one.tokens_per_s:.1f}",
            f"{one.user_tokens_per_s:.1f}",
            f"{one.ttft_ms['p50']:.0f}",
            f"{one.ttft_ms['p99']:.0f}",
            f"{one.inter_token_ms['p50']:.2f}",
            f"{one.inter_token_ms['p99']:.2f}",
            f"{one.mean_committed:.2f}",
            f"{one.mean_drafted:.2f}",
            f"{one.mean_verified:.2f}",
            f"{one.waste:.0%}",
            f"{one.batch_tokens:.0f}",
            f"{one.items_per_real_s:.0f}",
        ]
        for policy, one in by_policy.items()
    ]
    print_table(head, rows)
