"""Options `--export FORMAT=FILE`: files for other engines, each checked by the rules of its reader."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Export:
    """A file to write, and for whom."""

    format: str
    path: Path


def add_export_option(parser: argparse.ArgumentParser, what: str, formats: Mapping[str, str]) -> None:
    """Add `--export`, which may be given several times.

    Args:
        parser: of a command.
        what: is written, in a word or two.
        formats: name of each format -> who reads it.
    """
    choices = ", ".join(f"{name} ({reader})" for name, reader in formats.items())
    parser.add_argument(
        "--export",
        type=_export_of(tuple(formats)),
        action="append",
        default=[],
        metavar="FORMAT=FILE",
        help=f"write {what} for another reader; FORMAT is {choices}",
    )


def write_export(export: Export, document: Mapping[str, Any], read: Callable[[object], object]) -> None:
    """Write a JSON document that its reader would take.

    Args:
        export: the file.
        document: to write.
        read: reads such a document, by the rules of its reader.

    Raises:
        ConfigurationError: its reader would refuse it, or it cannot be written.
    """
    text = json.dumps(document, indent=2) + "\n"
    read(json.loads(text))
    write_text("--export", export.path, text)
    print(f"written to {export.path} ({export.format})")


def write_text(option: str, path: Path, text: str) -> None:
    """Write the file that an option names.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{option} {path} cannot be written: {error.strerror}") from error


def _export_of(formats: tuple[str, ...]) -> Callable[[str], Export]:
    def parse(text: str) -> Export:
        name, _, path = text.partition("=")
        if name not in formats or not path:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not FORMAT=FILE with one of the formats {', '.join(formats)}"
            )
        return Export(name, Path(path).expanduser())

    return parse
