"""The options of `dspark train`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dspark.cli.bench_options import non_negative_float, positive, positive_float, share


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all of them, in groups."""
    parser.add_argument("--out", type=Path, required=True, help="directory of the drafter to write")
    parser.add_argument("--work", type=Path, required=True, help="directory for data, features, checkpoints")
    parser.add_argument("--target", help="Hugging Face directory or GGUF file (default: SmolLM2-135M)")
    data = parser.add_argument_group("data")
    data.add_argument("--prompts", type=Path, action="append", default=[], help="JSON lines with `prompt`")
    data.add_argument(
        "--responses", type=Path, action="append", default=[], help="JSON lines with ready responses"
    )
    data.add_argument("--self-prompts", type=int, default=0, help="prompts the target invents itself")
    data.add_argument(
        "--greedy-share",
        type=share,
        default=0.4,
        help="share of the generated responses that are made at temperature 0 (default: 0.4); the rest are "
        "made at 0.3, 0.7 and 1, equally",
    )
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
    shape.add_argument(
        "--init",
        type=Path,
        help="drafter directory to start from; its shape wins, but --rank 0 leaves its heads out",
    )
    shape.add_argument(
        "--start",
        choices=("target", "noise"),
        help="what a new drafter starts as: its layers as copies of the target's last ones and its Markov "
        "head from the target's embedding (default), or all noise (default with --recipe published)",
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
        type=positive_float,
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
        type=share,
        default=0.0,
        metavar="SHARE",
        help="share of the run, its last part, whose weights are averaged: the drafter that comes out has "
        "their mean (default: 0, the last weights)",
    )
    group.add_argument(
        "--keep-start",
        type=share,
        default=0.0,
        metavar="SHARE",
        help="weight of the drafter of --init, number by number, in the drafter that comes out (default: 0; "
        "0.5: the mean of both)",
    )
    group.add_argument(
        "--lr",
        type=float,
        help="learning rate of the matrices (2e-3; published: 6e-4); with Muon the rest: 3/4",
    )
    group.add_argument(
        "--growing-share",
        type=share,
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
