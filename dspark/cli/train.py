"""`dspark train`: a drafter for a target, from nothing but the target itself."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from dspark.cache import default_cache_dir
from dspark.cli.allocator import arrange_allocator
from dspark.errors import ConfigurationError


def add_parser(subparsers: Any) -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "train",
        help="train a DSpark drafter for a target",
        description=(
            "Generates the target's own responses, caches its hidden states on disk, trains a drafter on "
            "them and writes a DeepSpec checkpoint with its calibration and a card. Every stage resumes: run "
            "the same command again after an interruption. Runs under jemalloc where that is installed "
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
    shape = parser.add_argument_group("drafter")
    shape.add_argument("--init", type=Path, help="drafter directory to start from; its shape wins")
    shape.add_argument("--layers", type=int, default=2, help="draft layers")
    shape.add_argument("--gamma", type=int, default=7, help="drafts per block")
    shape.add_argument("--taps", help="target layers to read, such as 1,8,14,20,27 (default: spread evenly)")
    shape.add_argument("--rank", type=int, default=64, help="rank of the Markov head; 0: none (DFlash)")
    shape.add_argument(
        "--head",
        choices=("vanilla", "gated", "rnn"),
        default="vanilla",
        help="kind of the Markov head: of the token before, gated by the hidden state, or of all before",
    )
    shape.add_argument(
        "--confidence",
        choices=("markov", "hidden", "none"),
        help="what the confidence head reads: the token before too, the hidden state only, or no such head "
        "(default: markov, with --rank 0 none)",
    )
    shape.add_argument("--draft-vocab", type=int, default=8192, help="draft vocabulary; 0: the target's")
    run = parser.add_argument_group("run")
    run.add_argument("--hours", type=float, default=1.0, help="wall-clock budget of the training stage")
    run.add_argument(
        "--lr",
        type=float,
        default=2e-3,
        help="learning rate of the weight matrices (Muon); the rest: 3/4 of it",
    )
    run.add_argument("--batch", type=int, default=16, help="samples per step")
    run.add_argument("--anchors", type=int, default=32, help="blocks per sample and step")
    run.add_argument("--tv", type=float, default=1.0, help="weight of the total-variation loss")
    run.add_argument("--threads", type=int, help="torch threads (default: all cores)")
    run.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=run_train)


def run_train(args: argparse.Namespace) -> int:
    """Run all stages."""
    arrange_allocator(lambda text: print(f"allocator: {text}", file=sys.stderr, flush=True))
    import torch

    from dspark.models.target import prepare_target
    from dspark.training import pipeline, run

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
    shape = pipeline.DrafterPlan(
        num_layers=args.layers,
        gamma=args.gamma,
        markov_rank=args.rank,
        markov_head_type=args.head,
        confidence=args.confidence or ("markov" if args.rank else "none"),
        draft_vocab_size=args.draft_vocab,
    )
    target = prepare_target(args.target, default_cache_dir())
    plan = run.RunPlan(
        target=target,
        work=args.work,
        out=args.out,
        cache_dir=default_cache_dir(),
        data=data,
        features=tuple(args.features),
        shape=shape,
        taps=taps,
        init=args.init,
        hours=args.hours,
        learning_rate=args.lr,
        batch_samples=args.batch,
        anchors_per_sample=args.anchors,
        tv=args.tv,
        seed=args.seed,
        command="dspark " + " ".join(sys.argv[1:]),
    )
    run.run(plan, report)
    return 0
