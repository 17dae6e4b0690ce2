"""`dspark train`: a drafter for a target, from nothing but the target itself."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.cache import default_cache_dir
from dspark.cli.allocator import arrange_allocator
from dspark.cli.train_options import add_options
from dspark.errors import ConfigurationError

if TYPE_CHECKING:
    from dspark.training.recipe import Recipe
    from dspark.training.run import RunLength
    from dspark.training.shapes import DrafterPlan


def add_parser(subparsers: Any) -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "train",
        help="train a drafter for a target",
        description=(
            "Generates the target's own responses, caches its hidden states on disk, trains a drafter on "
            "them and writes a DeepSpec checkpoint with its calibration and a card. Every stage resumes: run "
            "the same command again after an interruption. Several processes share the training under "
            "`torchrun -m dspark.cli.main train ...`. Runs under jemalloc where that is installed "
            "(Debian: libjemalloc2), which is faster; an LD_PRELOAD with another allocator is left as it is."
        ),
    )
    add_options(parser)
    parser.set_defaults(run=run_train)


def _recipe(args: argparse.Namespace) -> Recipe:
    """The named recipe with the parts that were given on the command line."""
    from dspark.training.blocks import AnchorRule
    from dspark.training.recipe import RECIPES, OptimiserKind, Schedule, for_chains

    recipe = RECIPES[args.recipe] if args.kind == "dspark" else for_chains(RECIPES[args.recipe])
    weights = {name: getattr(args, name) for name in ("hard", "soft", "tv", "confidence")}
    loss = replace(recipe.loss, **{name: value for name, value in weights.items() if value is not None})
    return replace(
        recipe,
        loss=loss,
        position_decay=args.decay or recipe.position_decay,
        anchors=AnchorRule(args.anchor_rule or recipe.anchors),
        optimiser=OptimiserKind(args.optimiser or recipe.optimiser),
        schedule=Schedule(args.schedule or recipe.schedule),
        learning_rate=args.lr or recipe.learning_rate,
        growing_share=args.growing_share,
        averaged_share=args.average,
        start_share=args.keep_start,
        block_lens=args.block_lens,
    )


def run_train(args: argparse.Namespace) -> int:
    """Run all stages."""
    # as torchrun tells its processes
    num_processes, is_first = int(os.environ.get("WORLD_SIZE", "1")), os.environ.get("RANK", "0") == "0"
    if args.sharding == "fsdp2" and num_processes == 1:
        raise ConfigurationError(
            "--sharding fsdp2 cuts the drafter up among several processes; start it with "
            "torchrun, or leave it out"
        )
    if args.online and args.features:
        raise ConfigurationError("--online computes what --features would read: pass one of them")
    if args.keep_start and args.init is None:
        raise ConfigurationError("--keep-start mixes the drafter of --init in: pass both, or neither")
    arrange_allocator(lambda text: print(f"allocator: {text}", file=sys.stderr, flush=True))
    import torch

    from dspark.models.target import prepare_target
    from dspark.training import run
    from dspark.training.data import DataPlan
    from dspark.training.distribution import Sharding

    if args.threads:
        torch.set_num_threads(args.threads)
    started = time.monotonic()

    def report(text: str) -> None:
        print(f"[{(time.monotonic() - started) / 60:6.1f} min] {text}", file=sys.stderr, flush=True)

    taps = None
    if args.taps:
        try:
            taps = tuple(int(one) for one in args.taps.split(","))
        except ValueError:
            raise ConfigurationError(f"--taps {args.taps!r}: write layer numbers such as 1,8,14") from None
    data = DataPlan(
        prompt_files=tuple(args.prompts),
        response_files=tuple(args.responses),
        num_self_prompts=args.self_prompts,
        max_new_tokens=args.max_new_tokens,
        greedy_share=args.greedy_share,
        seed=args.seed,
    )
    target = prepare_target(args.target, default_cache_dir())
    plan = run.RunPlan(
        target=target,
        work=args.work,
        out=args.out,
        cache_dir=default_cache_dir(),
        data=data,
        features=tuple(args.features),
        is_online=args.online,
        shape=_shape(args),
        taps=taps,
        init=args.init,
        recipe=_recipe(args),
        length=_length(args),
        batch_samples=args.batch,
        anchors_per_sample=args.anchors,
        micro_batches=args.micro_batches or num_processes,
        checkpoint_minutes=args.checkpoint_minutes,
        checkpoint_steps=args.checkpoint_steps,
        sharding=Sharding(args.sharding),
        has_tensorboard=args.tensorboard,
        seed=args.seed,
        command="dspark " + " ".join(sys.argv[1:]),
    )
    run.run(plan, report)
    if is_first:
        _draw(args.work, report)
    return 0


def _shape(args: argparse.Namespace) -> DrafterPlan:
    from dspark.training.shapes import DrafterKind, DrafterPlan

    kind = DrafterKind(args.kind)
    gamma = args.gamma or kind.usual_gamma
    start = args.start or ("noise" if args.recipe == "published" else "target")
    if kind is not DrafterKind.DSPARK:
        parts = ("layers", "rank", "head", "confidence_head")
        given = [f"--{one.replace('_', '-')}" for one in parts if getattr(args, one) is not None]
        if given:
            raise ConfigurationError(
                f"{', '.join(given)} shape a DSpark drafter, and --kind {kind} has one layer and no heads; "
                "leave them out"
            )
        return DrafterPlan(
            gamma=gamma, draft_vocab_size=args.draft_vocab, kind=kind, copies_layers=start == "target"
        )
    rank = 64 if args.rank is None else args.rank
    return DrafterPlan(
        num_layers=args.layers or 2,
        gamma=gamma,
        markov_rank=rank,
        markov_head_type=args.head or "vanilla",
        confidence=args.confidence_head or ("markov" if rank else "none"),
        draft_vocab_size=args.draft_vocab,
        copies_layers=start == "target",
    )


def _length(args: argparse.Namespace) -> RunLength:
    from dspark.training.run import RunLength

    if args.steps is not None or args.epochs is not None:
        return RunLength(steps=args.steps, epochs=args.epochs)
    return RunLength(hours=1.0 if args.hours is None else args.hours)


def _draw(work: Path, report: Callable[[str], None]) -> None:
    """Draw the curves of the run beside its metrics."""
    from dspark.evaluation.chart import svg
    from dspark.evaluation.training_curves import panels
    from dspark.training.metrics import read_metrics

    path = work / "metrics.svg"
    path.write_text(svg(panels(read_metrics(work))))
    report(f"drawn to {path}")
