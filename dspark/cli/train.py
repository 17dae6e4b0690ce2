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
from dspark.cli.bench_options import non_negative_float, positive
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
    parser.add_argument("--out", type=Path, required=True, help="directory of the drafter to write")
    parser.add_argument("--work", type=Path, required=True, help="directory for data, features, checkpoints")
    parser.add_argument("--target", help="Hugging Face directory or GGUF file (default: SmolLM2-135M)")
    data = parser.add_argument_group("data")
    data.add_argument("--prompts", type=Path, action="append", default=[], help="JSON lines with `prompt`")
    data.add_argument(
        "--responses", type=Path, action="append", default=[], help="JSON lines with ready responses"
    )
    data.add_argument("--self-prompts", type=int, default=0, help="prompts the target invents itself")
    data.add_argument("--max-new-tokens", type=int, default=400, help="longest response")
    data.add_argument("--features", type=Path, action="append", default=[], help="finished feature caches")
    data.add_argument(
        "--online",
        action="store_true",
        help="ask the target for features while training instead of caching them: slower, for data whose "
        "features would not fit on the disk",
    )
    shape = parser.add_argument_group("drafter")
    shape.add_argument(
        "--kind",
        choices=("dspark", "eagle3", "mtp"),
        default="dspark",
        help="dspark (default; DFlash without heads), or a baseline of one layer that drafts token by token: "
        "eagle3 from the tapped layers, mtp from the last hidden state. Both learn by their own loss, the "
        "cross entropy of the target's distribution",
    )
    shape.add_argument("--init", type=Path, help="drafter directory to start from; its shape wins")
    shape.add_argument(
        "--start",
        choices=("target", "noise"),
        help="what the layers of a new drafter start as: copies of the target's last ones (default), or "
        "noise (default with --recipe published)",
    )
    shape.add_argument("--layers", type=positive, help="draft layers (default: 2)")
    shape.add_argument("--gamma", type=positive, help="drafts per block (default: 7, of mtp 1)")
    shape.add_argument(
        "--taps",
        help="target layers to read, such as 1,8,14,20,27 (default: spread evenly); "
        "-1 is the embedding, as in --taps=-1,14",
    )
    shape.add_argument("--rank", type=int, help="rank of the Markov head; 0: none (DFlash; default: 64)")
    shape.add_argument(
        "--head",
        choices=("vanilla", "gated", "rnn"),
        help="kind of the Markov head: of the token before (default), gated by the hidden state, or of all "
        "before",
    )
    shape.add_argument(
        "--confidence-head",
        choices=("markov", "hidden", "none"),
        help="what the confidence head reads: the token before too, the hidden state only, or no such head "
        "(default: markov, with --rank 0 none)",
    )
    shape.add_argument("--draft-vocab", type=int, default=8192, help="draft vocabulary; 0: the target's")
    _add_recipe_options(parser.add_argument_group("recipe"))
    _add_run_options(parser.add_argument_group("run"))
    parser.set_defaults(run=run_train)


def _add_recipe_options(group: Any) -> None:
    group.add_argument(
        "--recipe",
        choices=("dspark", "published"),
        default="dspark",
        help="dspark (default): the target's whole distribution as label, Muon; published: losses, weights, "
        "anchors, optimiser and schedule of DeepSpec. What follows changes single parts of it",
    )
    group.add_argument("--hard", type=non_negative_float, help="weight of the cross entropy of the label")
    group.add_argument(
        "--soft", type=non_negative_float, help="weight of the cross entropy of the target's distribution"
    )
    group.add_argument(
        "--tv", type=non_negative_float, help="weight of the total variation, which is half the L1 norm"
    )
    group.add_argument("--confidence", type=non_negative_float, help="weight of the confidence loss")
    group.add_argument(
        "--decay",
        type=float,
        help="slots in which position weights fall by e (both 4; the paper's text: gamma)",
    )
    group.add_argument(
        "--anchor-rule",
        choices=("serving", "published", "novel"),
        help="which positions are drafted from; novel: as serving, but not where the last four tokens "
        "occurred before, since prompt lookup drafts there",
    )
    group.add_argument("--optimiser", choices=("muon", "adamw"), help="what moves the weight matrices")
    group.add_argument(
        "--schedule", choices=("trapezoid", "constant", "cosine"), help="form of the learning rate"
    )
    group.add_argument(
        "--average",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the run, its last part, whose weights are averaged: the drafter that comes out has "
        "their mean (default: 0, the last weights)",
    )
    group.add_argument(
        "--lr",
        type=float,
        help="learning rate of the matrices (2e-3; published: 6e-4); with Muon the rest: 3/4",
    )
    group.add_argument(
        "--growing-share",
        type=float,
        default=0.0,
        help="share of the run in which blocks grow: one slot at every position first, then 2 to gamma "
        "(default: 0, gamma from the start)",
    )
    group.add_argument(
        "--block-lens",
        type=_lengths,
        default=(),
        metavar="N,...",
        help="slots of the blocks of one step after the other, over and over, such as 2,7; shorter blocks "
        "are as many more (default: gamma in all)",
    )


def _add_run_options(group: Any) -> None:
    length = group.add_mutually_exclusive_group()
    length.add_argument("--hours", type=float, help="length of the training by the clock (default: 1)")
    length.add_argument("--steps", type=positive, help="length in steps: the same run gives the same bits")
    length.add_argument("--epochs", type=float, help="length in passes over the samples")
    group.add_argument("--batch", type=positive, default=8, help="samples per batch")
    group.add_argument("--anchors", type=positive, default=24, help="blocks per sample and step")
    group.add_argument(
        "--micro-batches",
        type=positive,
        help="batches per step, shared out among the processes of torchrun (default: one per process)",
    )
    group.add_argument(
        "--checkpoint-minutes", type=float, default=5.0, help="between checkpoints (default: 5)"
    )
    group.add_argument("--checkpoint-steps", type=positive, help="between checkpoints, instead of minutes")
    group.add_argument(
        "--sharding",
        choices=("ddp", "fsdp2"),
        default="ddp",
        help="what each process of torchrun holds: the drafter with its gradients and optimisers (ddp, the "
        "default), or a part of each (fsdp2), for drafters that are too large for that",
    )
    group.add_argument(
        "--tensorboard", action="store_true", help="also write metrics for TensorBoard, into WORK/tensorboard"
    )
    group.add_argument("--threads", type=positive, help="torch threads (default: all cores)")
    group.add_argument("--seed", type=int, default=0)


def _lengths(text: str) -> tuple[int, ...]:
    """`2,7` as numbers, each above 0."""
    return tuple(positive(part) for part in text.split(","))


def _recipe(args: argparse.Namespace) -> Recipe:
    """The named recipe with the parts that were given on the command line."""
    from dspark.training.blocks import AnchorRule
    from dspark.training.recipe import RECIPES, OptimiserKind, Schedule, for_chains

    recipe = RECIPES[args.recipe] if args.kind == "dspark" else for_chains(RECIPES[args.recipe])
    weights = {name: getattr(args, name) for name in ("hard", "soft", "tv", "confidence")}
    loss = replace(recipe.loss, **{name: value for name, value in weights.items() if value is not None})
    if args.decay is not None and args.decay <= 0:
        raise ConfigurationError(f"--decay {args.decay:g} must be above 0")
    if not 0 <= args.growing_share <= 1:
        raise ConfigurationError(f"--growing-share {args.growing_share:g} must lie between 0 and 1")
    if not 0 <= args.average <= 1:
        raise ConfigurationError(f"--average {args.average:g} must lie between 0 and 1")
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
    arrange_allocator(lambda text: print(f"allocator: {text}", file=sys.stderr, flush=True))
    import torch

    from dspark.models.target import prepare_target
    from dspark.training import pipeline, run
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
    data = pipeline.DataPlan(
        prompt_files=tuple(args.prompts),
        response_files=tuple(args.responses),
        num_self_prompts=args.self_prompts,
        max_new_tokens=args.max_new_tokens,
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
