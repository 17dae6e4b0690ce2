"""`dspark bench scheduler`: how long a round is planned; with --simulate, what policies reach on a machine.

Without --simulate the planning of one round of 256 requests is timed for every policy on this machine. With
it the round loop serves a synthetic or recorded trace in virtual time, over simulated engines whose steps
cost what a curve says: no model is needed, and thousands of requests take seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dspark.cli.bench_options import add_report_option, finite, positive, positive_float
from dspark.cli.bench_report import Report, finish, print_table
from dspark.errors import ConfigurationError
from dspark.evaluation.simulation.trace import OUTPUT_LEN, PROMPT_LEN
from dspark.evaluation.verdict import at_most
from dspark.rounds.policies import POLICIES

MOST_PLANNING_US = 150.0

_NUM_REQUESTS = 256
_GAMMA = 7
_LONGEST_BLOCK = 64
_REPEATS = 2000
_LARGEST_SEED = 2**32 - 1
# What shapes a simulation and nothing else.
_SIMULATION_OPTIONS = (
    "concurrency",
    "rate",
    "trace",
    "save_trace",
    "requests",
    "prompt_len",
    "output_len",
    "difficulty",
    "confidence_offset",
    "threshold",
)


def add_parser(subparsers: Any) -> None:
    """Add `dspark bench scheduler`."""
    parser = subparsers.add_parser(
        "scheduler",
        help="planning time, and policies in a simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--simulate", action="store_true", help="serve a trace in virtual time, without a model"
    )
    parser.add_argument(
        "--policies",
        type=names_of((*POLICIES, "mtp-1")),
        metavar="NAME,...",
        help=f"some of {', '.join(POLICIES)}, and with --simulate mtp-1 (default: all of them)",
    )
    parser.add_argument(
        "--curve",
        metavar="NAME|FILE",
        help="what steps cost: h100-like, cpu-like, memory-bound, or a JSON file with step_cost (default: "
        "h100-like; for timing memory-bound, which admits the most drafts and so plans the longest)",
    )
    parser.add_argument(
        "--gamma", type=block_len, default=_GAMMA, help=f"drafts of a block (default: {_GAMMA})"
    )
    parser.add_argument("--seed", type=seed, default=0, help="of everything drawn (default: 0)")
    parser.add_argument(
        "--repeats", type=positive, help=f"plans of each policy, without --simulate (default: {_REPEATS})"
    )
    _add_simulation_options(parser)
    add_report_option(parser)
    parser.set_defaults(run=run)


def _add_simulation_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("with --simulate")
    loads = group.add_mutually_exclusive_group()
    loads.add_argument(
        "--concurrency",
        type=list_of(positive),
        metavar="N,...",
        help="streams kept busy, one load each (default: 1,2,4,...,256)",
    )
    loads.add_argument(
        "--rate",
        type=list_of(positive_float),
        metavar="R,...",
        help="instead: requests per second that arrive by chance, one load each",
    )
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="JSON lines with arrival_s, prompt_len, output_len, difficulty, domain, replayed as they came "
        "unless --concurrency is given (default: a synthetic one)",
    )
    group.add_argument(
        "--save-trace", type=Path, metavar="FILE", help="write the synthetic trace, as --trace takes it"
    )
    group.add_argument(
        "--requests", type=positive, help="requests of the trace (default: 200, or all of --trace)"
    )
    for name, default in (("prompt", PROMPT_LEN), ("output", OUTPUT_LEN)):
        group.add_argument(
            f"--{name}-len",
            type=positive,
            metavar="N",
            help=f"median tokens of a synthetic {name} (default: {default})",
        )
    group.add_argument(
        "--difficulty",
        type=finite,
        metavar="X",
        help="log-odds by which synthetic drafts are worse (default: 0)",
    )
    group.add_argument(
        "--confidence-offset",
        type=finite,
        metavar="X",
        help="log-odds by which confidences are too high: miscalibration on purpose (default: 0)",
    )
    group.add_argument(
        "--threshold", type=share, metavar="C", help="least confidence under threshold (default: 0.5)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure or simulate, print, judge."""
    if args.simulate:
        from dspark.cli.bench_simulation import run_simulation

        if args.repeats is not None:
            raise ConfigurationError("--repeats counts plans that are timed; leave it out with --simulate")
        return run_simulation(args)
    given = [name for name in _SIMULATION_OPTIONS if getattr(args, name) is not None]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigurationError(f"{options}: shapes a simulation; add --simulate or leave it out")
    if "mtp-1" in (args.policies or ()):
        raise ConfigurationError("--policies mtp-1 is for a simulation; add --simulate or leave it out")
    return _time_plans(args)


def _time_plans(args: argparse.Namespace) -> int:
    from dspark.evaluation.planning_time import time_planning
    from dspark.evaluation.simulation.curves import machine_of

    machine, repeats = machine_of(args.curve or "memory-bound"), args.repeats or _REPEATS
    times = {
        policy: time_planning(
            policy, machine, num_requests=_NUM_REQUESTS, gamma=args.gamma, repeats=repeats, seed=args.seed
        )
        for policy in args.policies or POLICIES
    }
    print(f"{_NUM_REQUESTS} requests with {args.gamma} drafts each, {machine.name}, {repeats} plans")
    rows = [
        [policy, f"{one.median_us:.0f}", f"{one.p99_us:.0f}", f"{one.mean_verified:.2f}"]
        for policy, one in times.items()
    ]
    print_table(["policy", "median µs", "p99 µs", "verified a request"], rows)
    report = Report(
        name="scheduler",
        setup={"requests": _NUM_REQUESTS, "gamma": args.gamma, "curve": machine.name, "repeats": repeats},
        figures={policy: one.as_dict() for policy, one in times.items()},
        checks=[
            at_most(f"{policy}: median µs", one.median_us, MOST_PLANNING_US) for policy, one in times.items()
        ],
    )
    return finish(report, args.json)


def list_of(parse: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Several arguments in one, apart by commas, each of them once, in rising order."""

    def parse_all(text: str) -> list[Any]:
        return sorted({parse(part.strip()) for part in text.split(",")})

    return parse_all


def names_of(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Several names in one argument, apart by commas."""

    def parse_all(text: str) -> list[str]:
        names = list(dict.fromkeys(part.strip() for part in text.split(",")))
        unknown = [name for name in names if name not in choices]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(choices)}")
        return names

    return parse_all


def block_len(text: str) -> int:
    """An argument that must be a length of a block."""
    if positive(text) > _LONGEST_BLOCK:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {_LONGEST_BLOCK}")
    return positive(text)


def seed(text: str) -> int:
    """An argument that keys randomness."""
    if not text.isdecimal() or int(text) > _LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {_LARGEST_SEED}")
    return int(text)


def share(text: str) -> float:
    """An argument that must be a number from 0 to 1."""
    value = finite(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value
