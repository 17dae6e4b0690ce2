"""Entry of the `dspark` command: finds the subcommand, runs it, turns errors into one sentence."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from dspark import __version__
from dspark.cli.keeper import CONFIGURATION_EXIT_CODE, ProcessFailedError
from dspark.errors import ConfigurationError, DsparkError, ModelMismatchError

# Command -> module with `add_parser(subparsers)`, which sets `run(args) -> exit code` as a default.
# Only the module of the command in use is imported, so that no command waits for another's imports.
COMMANDS = {
    "up": "dspark.cli.up",
    "chat": "dspark.cli.chat",
    "doctor": "dspark.cli.doctor",
    "prepare": "dspark.cli.prepare",
    "profile": "dspark.cli.profile",
    "train": "dspark.cli.train",
    "bench": "dspark.cli.bench",
    "evaluate": "dspark.cli.evaluate",
    "calibrate": "dspark.cli.calibrate",
    "export": "dspark.cli.export",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = _build_parser(arguments).parse_args(arguments)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output is gone; keep the interpreter from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except ProcessFailedError as error:
        return _fail(args.command, error, CONFIGURATION_EXIT_CODE if error.is_configuration else 1)
    except (ConfigurationError, ModelMismatchError) as error:
        return _fail(args.command, error, CONFIGURATION_EXIT_CODE)
    except DsparkError as error:
        return _fail(args.command, error, 1)


def _fail(command: str, error: Exception, code: int) -> int:
    print(f"dspark {command}: {error}", file=sys.stderr)
    return code


def _build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dspark", description="Lossless speculative decoding, served.")
    parser.add_argument("--version", action="version", version=f"dspark {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    named = arguments[0] if arguments else ""
    for name in [named] if named in COMMANDS else COMMANDS:
        importlib.import_module(COMMANDS[name]).add_parser(subparsers)
    return parser


if __name__ == "__main__":
    sys.exit(main())
