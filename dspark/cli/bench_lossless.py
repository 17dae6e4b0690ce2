"""`dspark bench lossless`: shows that drafts change nothing, under every policy, rule and sampling setting.

Tables are enumerated, tiny models compared token by token, a real one re-scored; it ends with one table.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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
from dspark.evaluation.lossless.matrix import Case, as_figures, matrix_check, matrix_head, matrix_rows
from dspark.evaluation.verdict import Check

if TYPE_CHECKING:
    from dspark.evaluation.lossless.real_pair import RealPair

_Verdict = TypeVar("_Verdict", Case, Check)

_NUM_STREAMS = 8
_NUM_EXACT_TEXTS = 3
# Samples for one output of a tiny model compared token by token, and for one placed in its distribution.
_SAMPLES_PER_OUTPUT, _SAMPLES_PER_PLACED = 1000, 200
_LEAST_SAMPLES = 1000
_TOKENS_PER_STREAM = 2048


def add_parser(subparsers: Any) -> None:
    """Add `dspark bench lossless`."""
    parser = subparsers.add_parser(
        "lossless",
        help="prove that drafts change nothing",
        description=__doc__,
        epilog="A short run: --limit 1 --tokens 32 --samples 1000 --seeds 1",
    )
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
    cases, checks = _tiny(args.samples)
    setup: dict[str, Any] = {"samples": args.samples}
    figures: dict[str, Any] = {}
    if models is not None:
        setup |= {"target": models.target.name, "tokens": args.tokens, "seeds": args.seeds}
    if models is not None and models.drafter is not None:
        setup["drafter"] = models.drafter.name
        real_cases, real_checks = asyncio.run(_real(args, models, setup))
        cases, checks = cases + real_cases, checks + real_checks
    checks.insert(0, matrix_check(cases))
    figures["cases"] = as_figures(cases)
    print_table(matrix_head(), matrix_rows(cases))
    code = finish(Report("lossless", setup, figures, checks=checks), args.json)
    if models is not None and models.drafter is None:
        print("dspark bench lossless: there is no drafter, so only tiny models were checked; see --drafter")
        return INCOMPLETE_EXIT_CODE
    return code


def _tiny(num_samples: int) -> tuple[list[Case], list[Check]]:
    from dspark.evaluation.lossless import table_checks as tables
    from dspark.evaluation.lossless import tiny_checks as tiny
    from dspark.evaluation.threads import one_thread

    told = _Told()
    with one_thread(), tempfile.TemporaryDirectory(prefix="dspark-tiny-") as folder:
        cases = told.all(tables.enumerated_cases())
        checks = told.all(tables.table_checks(num_samples))
        pair = tiny.TinyPair.load(Path(folder))
        per_setting, num_sampled = num_samples // _SAMPLES_PER_OUTPUT, num_samples // _SAMPLES_PER_PLACED
        cases += told.all(tiny.tiny_cases(pair, per_setting=per_setting, num_sampled=num_sampled))
        checks += told.all(tiny.tiny_checks(pair, num_samples // 2))
        pair.engines.worker.shutdown()
    return cases, checks


async def _real(
    args: argparse.Namespace, models: Models, setup: dict[str, Any]
) -> tuple[list[Case], list[Check]]:
    import torch

    from dspark.evaluation.exact_speed import ExactSpeed
    from dspark.evaluation.lossless import real_checks as real
    from dspark.evaluation.lossless.exact_checks import exact_check, exact_speed_check
    from dspark.evaluation.lossless.real_pair import RESCORING_MARGIN
    from dspark.evaluation.lossless.real_settings import RealSettings

    pair = _load_pair(args, models)
    info, told = pair.engines.target.info, _Told()
    setup |= {"dtype": info.dtype, "threads": torch.get_num_threads(), "prompts": len(pair.prompts)}
    setup |= {"is_exact": info.is_exact, "near_tie_margin": RESCORING_MARGIN}
    settings = RealSettings(pair)
    cases = [told.one(case) async for case in settings.cases()]
    checks = told.all(settings.checks())
    texts = [prompt.token_ids for prompt in pair.prompts[:_NUM_EXACT_TEXTS]]
    checks.append(told.one(exact_check(pair.own, info, texts)))
    speed = ExactSpeed(pair.stock.model, info.dtype, default_cache_dir())
    checks.append(told.one(exact_speed_check(speed.measure(), info)))
    checks += [told.one(check) async for check in real.greedy_checks(pair)]
    checks += [told.one(check) async for check in real.coupled_checks(pair)]
    checks.append(told.one(await real.sampling_check(pair, args.seeds)))
    pair.engines.worker.shutdown()
    return cases, checks


def _load_pair(args: argparse.Namespace, models: Models) -> RealPair:
    from dspark.evaluation.generation import EnginePlan, load_engines
    from dspark.evaluation.lossless.real_pair import RealPair
    from dspark.evaluation.own_forward import OwnForward
    from dspark.evaluation.stock import StockModel

    progress("loading the engines")
    pool_tokens = _NUM_STREAMS * _TOKENS_PER_STREAM
    plan = EnginePlan(
        models.target,
        models.drafter,
        pool_tokens=pool_tokens,
        cache_dir=default_cache_dir(),
        with_lookup=True,
    )
    engines = load_engines(plan)
    dtype = engines.target.info.dtype
    own = OwnForward(models.target, dtype, pool_tokens=pool_tokens, cache_dir=default_cache_dir())
    # Nearer to the truth than bfloat16, and on CPUs that widen it many times faster.
    stock = StockModel(models.target, dtype, compute_dtype="float32")
    return RealPair(engines, stock, own, read_prompts(args, models.target), args.tokens)


class _Told:
    """Tells of every check or case when it is done."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def one(self, done: _Verdict) -> _Verdict:
        """Tell of one."""
        seconds, self._last = time.monotonic() - self._last, time.monotonic()
        state = "ok" if done.is_met else "MISSED"
        progress(f"{state:<7} {done.name}: {done.found} ({seconds:.1f} s)")
        return done

    def all(self, verdicts: Iterable[_Verdict]) -> list[_Verdict]:
        """Tell of each."""
        return [self.one(done) for done in verdicts]
