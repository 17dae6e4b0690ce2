"""`dspark export`: writes a drafter in the format of another project and reads it back."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.cli.bench_options import add_model_options, need_drafter, read_models
from dspark.errors import ConfigurationError

if TYPE_CHECKING:
    from dspark.models.config import DrafterConfig
    from dspark.models.drafter import DSparkDrafter

_FORMATS = ("deepspec", "speculators")


def add_parser(subparsers: Any) -> None:
    """Add `dspark export`."""
    parser = subparsers.add_parser(
        "export",
        help="write a drafter for other projects",
        description=(
            "Writes a drafter as DeepSpec's classes load it (deepspec), or in the convention of speculators, "
            "which vLLM reads (speculators). What was written is read back and compared bit for bit, and "
            "calibration.json is put beside it for dspark."
        ),
    )
    add_model_options(parser)
    parser.add_argument("--format", choices=_FORMATS, required=True, help="whose format")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory to write")
    parser.add_argument(
        "--full-vocabulary",
        action="store_true",
        help="deepspec: give a reduced draft vocabulary a row for every token; the Markov head grows by one "
        "number, which keeps the others from ever being drafted",
    )
    parser.add_argument(
        "--verifier",
        metavar="NAME",
        help="speculators: name or path by which the target is loaded there (default: name of its directory)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Export, read back, and say what was written."""
    if args.full_vocabulary and args.format != "deepspec":
        raise ConfigurationError(
            "--full-vocabulary is for --format deepspec; speculators has a place for a draft vocabulary"
        )
    if args.verifier is not None and args.format != "speculators":
        raise ConfigurationError("--verifier is for --format speculators; DeepSpec names no target")
    models = read_models(args)
    source, target, out = need_drafter(models), models.target, args.out.expanduser()
    if out.resolve() == source.resolve():
        raise ConfigurationError(f"--out {out} is the drafter itself; name another directory")

    from dspark.models.calibration import FILE
    from dspark.models.checkpoint import load_drafter
    from dspark.models.drafter import DSparkDrafter
    from dspark.models.export import check_export, export_deepspec, export_speculators
    from dspark.models.summary import summarise

    drafter = load_drafter(source, target)
    if not isinstance(drafter, DSparkDrafter):
        raise ConfigurationError(
            f"--drafter {source} is a {drafter.config.kind} drafter; export a DSpark or DFlash drafter"
        )
    if args.format == "deepspec":
        written = export_deepspec(drafter, target, out, has_full_vocabulary=args.full_vocabulary)
    else:
        written = export_speculators(drafter, target, out, verifier=args.verifier or target.name)
    check_export(written, target, out)
    if (source / FILE).is_file():
        shutil.copyfile(source / FILE, out / FILE)
    print(f"written to {out} ({args.format}), read back bit for bit\n  {summarise(out)}")
    for note in _notes(args.format, drafter, written.config):
        print(f"  {note}")
    return 0


def _notes(kind: str, drafter: DSparkDrafter, written: DrafterConfig) -> Iterator[str]:
    if drafter.config != written:
        yield (
            f"the draft vocabulary of {drafter.config.draft_vocab_size} tokens was filled up to "
            f"{written.vocab_size}: rank {drafter.config.markov_rank} became {written.markov_rank}"
        )
    if kind == "speculators" and written.markov_head_type != "vanilla":
        yield f"vLLM had no {written.markov_head_type} heads when this was written, only vanilla ones"
    if kind == "speculators" and not written.markov_rank:
        yield "vLLM was not seen to run a drafter of this format without a Markov head"
