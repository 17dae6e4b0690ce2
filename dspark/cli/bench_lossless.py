"""`dspark bench lossless`: shows that drafts change nothing: tiny models exactly, a real one re-scored."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
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
from dspark.cli.bench_report import Report, finish, progress
from dspark.evaluation.verdict import Check

if TYPE_CHECKING:
    from dspark.evaluation.lossless.real_checks import RealPair

_NUM_STREAMS = 8
_LEAST_SAMPLES = 1000
_TOKENS_PER_STREAM = 2048


def add_parser(subparsers: Any) -> None:
    """Add `dspark bench lossless`."""
    parser = subparsers.add_parser("lossless", help="prove that drafts change nothing", description=__doc__)
    add_model_options(parser)
    add_prompt_options(parser, limit=3)
    parser.add_argument("--tokens", type=positive, default=64, help="most tokens of an output (default: 64)")
    parser.add_argument(
        "--samples",
        type=_samples,
        default=4000,
        help="outputs per sampling check of tiny models (default: 4000)",
    )
    parser.add_argument(
        "--seeds", type=positive, default=4, help="sampled outputs per prompt of the real model (default: 4)"
    )
    parser.add_argument("--tiny-only", action="store_true", help="leave out the real model")
    add_report_option(parser)
    parser.set_defaults(run=run)


def _samples(text: str) -> int:
    """Enough for the negative controls to be caught at the stated error rate."""
    if not text.isdecimal() or int(text) < _LEAST_SAMPLES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {_LEAST_SAMPLES}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Check, print, judge."""
    models = None if args.tiny_only else read_models(args)
    checks = _tiny_checks(args.samples)
    setup: dict[str, Any] = {"samples": args.samples}
    if models is not None:
        setup |= {"target": models.target.name, "tokens": args.tokens, "seeds": args.seeds}
    if models is not None and models.drafter is not None:
        setup["drafter"] = models.drafter.name
        checks += asyncio.run(_real_checks(args, models, setup))
    code = finish(Report("lossless", setup, {}, checks=checks), args.json)
    if models is not None and models.drafter is None:
        print("dspark bench lossless: there is no drafter, so only tiny models were checked; see --drafter")
        return INCOMPLETE_EXIT_CODE
    return code


def _tiny_checks(num_samples: int) -> list[Check]:
    from dspark.evaluation.lossless.table_checks import table_checks
    from dspark.evaluation.lossless.tiny_checks import tiny_checks
    from dspark.evaluation.threads import one_thread

    with one_thread(), tempfile.TemporaryDirectory(prefix="dspark-tiny-") as folder:
        checks = _told(table_checks(num_samples))
        checks += _told(tiny_checks(Path(folder), num_prompts=32, num_samples=num_samples // 2))
    return checks


async def _real_checks(args: argparse.Namespace, models: Models, setup: dict[str, Any]) -> list[Check]:
    import torch

    from dspark.evaluation.lossless import real_checks as real

    pair = _load_pair(args, models)
    info = pair.engines.target.info
    setup |= {"dtype": info.dtype, "threads": torch.get_num_threads(), "prompts": len(pair.prompts)}
    setup |= {"is_exact": info.is_exact, "near_tie_margin": real.RESCORING_MARGIN}
    checks = _told(await real.greedy_checks(pair))
    checks += _told(await real.coupled_checks(pair))
    checks += _told([await real.sampling_check(pair, args.seeds)])
    pair.engines.worker.shutdown()
    return checks


def _load_pair(args: argparse.Namespace, models: Models) -> RealPair:
    from dspark.evaluation.generation import EnginePlan, load_engines
    from dspark.evaluation.lossless.real_checks import RealPair
    from dspark.evaluation.stock import StockModel

    progress("loading the engines")
    plan = EnginePlan(
        models.target,
        models.drafter,
        pool_tokens=_NUM_STREAMS * _TOKENS_PER_STREAM,
        cache_dir=default_cache_dir(),
    )
    engines = load_engines(plan)
    stock = StockModel(models.target, engines.target.info.dtype)
    return RealPair(engines, stock, read_prompts(args, models.target), args.tokens)


def _told(checks: Iterable[Check]) -> list[Check]:
    """The checks, each told when it is done."""
    done = []
    started = time.monotonic()
    for check in checks:
        seconds, started = time.monotonic() - started, time.monotonic()
        progress(f"{'ok' if check.is_met else 'MISSED':<7} {check.name}: {check.found} ({seconds:.1f} s)")
        done.append(check)
    return done
