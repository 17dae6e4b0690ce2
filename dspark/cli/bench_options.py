"""Options that the measuring commands share, and how they are read."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.cache import default_cache_dir
from dspark.cli.paths import is_drafter_dir, shipped_drafter_dir
from dspark.engine.threads import quiet_thread_variables
from dspark.errors import ConfigurationError
from dspark.models.method import named_method

if TYPE_CHECKING:
    from dspark.evaluation.tasks import TaskPrompt

# A benchmark that lacks what it is to measure.
INCOMPLETE_EXIT_CODE = 2


@dataclass(frozen=True, slots=True)
class Models:
    """What is measured.

    Attributes:
        target: a prepared Hugging Face directory.
        drafter: a drafter directory, or None where there is none.
    """

    target: Path
    drafter: Path | None


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which models."""
    parser.add_argument("--target", metavar="DIR|GGUF", help="target (default: SmolLM2-135M-Instruct)")
    parser.add_argument(
        "--drafter",
        metavar="DIR|prompt-lookup",
        help="drafter checkpoint, or drafts copied from earlier text (default: the shipped one)",
    )
    parser.add_argument("--threads", type=positive, help="torch threads (default: torch's own choice)")


def add_prompt_options(parser: argparse.ArgumentParser, *, limit: int | None) -> None:
    """Which prompts."""
    shown = "all" if limit is None else str(limit)
    parser.add_argument(
        "--prompts",
        type=Path,
        nargs="+",
        default=[],
        metavar="PATH",
        help="JSON-lines files with `turns`, or directories of them (default: the prompts of dspark)",
    )
    parser.add_argument(
        "--limit", type=positive, default=limit, help=f"most prompts of one file (default: {shown})"
    )


def add_report_option(parser: argparse.ArgumentParser) -> None:
    """Where the report goes."""
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="report (default: benchmarks/results/NAME.json)"
    )


def positive(text: str) -> int:
    """An argument that must be a whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def non_negative_float(text: str) -> float:
    """An argument that must be a number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def finite(text: str) -> float:
    """An argument that must be a number, of either sign."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


def positive_float(text: str) -> float:
    """An argument that must be a number above 0."""
    value = finite(text)
    if value <= 0.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def share(text: str) -> float:
    """An argument that must be a number from 0 to 1."""
    value = non_negative_float(text)
    if value > 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} does not lie between 0 and 1")
    return value


def read_models(args: argparse.Namespace) -> Models:
    """Set the threads, prepare the target, find the drafter.

    Raises:
        ConfigurationError: a path is wrong.
    """
    # Before torch is imported.
    os.environ.update(quiet_thread_variables(os.environ))
    import torch

    from dspark.models.target import prepare_target

    if args.threads:
        torch.set_num_threads(args.threads)
    return Models(prepare_target(args.target, default_cache_dir()), _drafter(args))


def read_prompts(args: argparse.Namespace, target: Path) -> list[TaskPrompt]:
    """The prompts asked for, rendered for this target.

    Raises:
        ConfigurationError: a path or a line cannot be used.
    """
    from transformers import AutoTokenizer

    from dspark.evaluation.tasks import encode_prompts, read_tasks

    tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True)
    return encode_prompts(read_tasks(args.prompts, limit=args.limit), tokenizer)


def need_drafter(models: Models) -> Path:
    """The drafter of a command that cannot do without.

    Raises:
        ConfigurationError: there is none.
    """
    if models.drafter is None:
        raise ConfigurationError(
            "there is no drafter for this target; name one with --drafter, or train one with dspark train"
        )
    return models.drafter


def find_drafter(option: str, text: str) -> Path:
    """The drafter that an option names.

    Raises:
        ConfigurationError: it is none.
    """
    if (method := named_method(text)) is not None:
        return method
    path = Path(text).expanduser()
    if not is_drafter_dir(path):
        raise ConfigurationError(
            f"{option} {path} holds no config.json; name a drafter checkpoint, or prompt-lookup"
        )
    return path


def _drafter(args: argparse.Namespace) -> Path | None:
    if args.drafter is not None:
        return find_drafter("--drafter", args.drafter)
    shipped = shipped_drafter_dir()
    return shipped if args.target is None and is_drafter_dir(shipped) else None
