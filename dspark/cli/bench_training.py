"""`dspark bench training`: speed and memory of our training step against a plain PyTorch loop."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.cache import default_cache_dir
from dspark.cli.bench_options import add_report_option, positive
from dspark.cli.bench_report import Report, finish, print_table, progress
from dspark.evaluation.verdict import Check, at_least, at_most

if TYPE_CHECKING:
    from dspark.evaluation.training_speed import Turn

LEAST_OURS_VS_PLAIN = 2.0
# Of the losses of the first step: rounding, and no more.
MOST_LOSS_DIFFERENCE = 0.01
_NUM_SAMPLES = 48


def add_parser(subparsers: Any) -> None:
    """Add `dspark bench training`."""
    parser = subparsers.add_parser(
        "training", help="our training step against a plain one", description=__doc__
    )
    parser.add_argument("--target", metavar="DIR|GGUF", help="target (default: SmolLM2-135M-Instruct)")
    parser.add_argument(
        "--features", type=Path, metavar="DIR", help="feature cache (default: random numbers of its shape)"
    )
    parser.add_argument("--layers", type=positive, default=2, help="draft layers (default: 2)")
    parser.add_argument("--gamma", type=positive, default=7, help="drafts per block (default: 7)")
    parser.add_argument("--draft-vocab", type=positive, default=8192, help="draft vocabulary (default: 8192)")
    parser.add_argument("--batch", type=positive, default=16, help="samples per step (default: 16)")
    parser.add_argument("--anchors", type=positive, default=32, help="blocks per sample (default: 32)")
    parser.add_argument("--steps", type=positive, default=3, help="steps of a turn (default: 3)")
    parser.add_argument("--turns", type=positive, default=4, help="turns of each (default: 4)")
    parser.add_argument("--threads", type=positive, help="torch threads (default: torch's own choice)")
    add_report_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print, judge."""
    from transformers import AutoConfig

    from dspark.evaluation.training_speed import TrainingSetup, measure_training, write_invented_features
    from dspark.models.target import prepare_target
    from dspark.training.run import spread_taps
    from dspark.training.shapes import DrafterPlan

    target = prepare_target(args.target, default_cache_dir())
    with tempfile.TemporaryDirectory(prefix="dspark-bench-") as scratch:
        features = args.features or Path(scratch) / "features"
        if args.features is None:
            progress("inventing features")
            taps = spread_taps(AutoConfig.from_pretrained(target).num_hidden_layers)
            write_invented_features(features, target, taps, num_samples=max(_NUM_SAMPLES, args.batch))
        shape = DrafterPlan(args.layers, args.gamma, draft_vocab_size=args.draft_vocab)
        setup = TrainingSetup(target, features, shape, args.batch, args.anchors, args.threads)
        found = measure_training(setup, steps=args.steps, turns=args.turns, progress=progress)
    report = _report(args, target.name, found)
    rows = [
        [
            name,
            f"{one['blocks_per_s']:.1f}",
            f"{one['blocks_per_cpu_s']:.1f}",
            f"{one['peak_mib']:.0f}",
            f"{one['step_mib']:.0f}",
        ]
        for name, one in report.figures.items()
    ]
    print_table(["", "blocks/s", "blocks per s of CPU", "peak MiB", "of them by steps"], rows)
    return finish(report, args.json)


def _figures(turns: Sequence[Turn]) -> dict[str, Any]:
    """Speeds over all turns but the first one, which warms up."""
    counted = turns[1:]
    blocks = sum(turn.blocks for turn in counted)
    return {
        "blocks_per_s": blocks / sum(turn.seconds for turn in counted),
        "blocks_per_cpu_s": blocks / sum(turn.cpu_seconds for turn in counted),
        "turns": [turn.blocks / turn.seconds for turn in counted],
        "peak_mib": turns[-1].peak_mib,
        "step_mib": turns[-1].peak_mib - turns[0].start_mib,
        "first_loss": turns[0].first_loss,
    }


def _report(args: argparse.Namespace, target: str, found: dict[str, list[Turn]]) -> Report:
    from dspark.evaluation.training_speed import OURS, PLAIN
    from dspark.training.precision import training_dtype

    figures = {name: _figures(turns) for name, turns in found.items()}
    ours, plain = figures[OURS], figures[PLAIN]
    speed = ours["blocks_per_s"] / plain["blocks_per_s"]
    difference = abs(ours["first_loss"] / plain["first_loss"] - 1)
    checks: list[Check] = [
        at_least("ours_vs_plain", speed, LEAST_OURS_VS_PLAIN),
        at_most("difference of the first losses", difference, MOST_LOSS_DIFFERENCE),
    ]
    names = ("layers", "gamma", "draft_vocab", "batch", "anchors", "steps", "turns", "threads")
    return Report(
        name="training",
        setup={
            "target": target,
            "features": "invented" if args.features is None else args.features.name,
            "dtype": str(training_dtype()).removeprefix("torch."),
            **{name: getattr(args, name) for name in names},
        },
        figures=figures,
        ratios={
            "ours_vs_plain": speed,
            "ours_vs_plain_cpu": ours["blocks_per_cpu_s"] / plain["blocks_per_cpu_s"],
            "peak_memory": ours["peak_mib"] / plain["peak_mib"],
        },
        checks=checks,
        notes=(
            "the plain loop has the same drafter, blocks, loss and optimisers; it pads samples, masks "
            "attention slot by key, keeps whole logits, and projects every position of the target to its "
            "vocabulary",
            "peaks include torch, the target's embedding and head, and the pages of the features",
        ),
    )
