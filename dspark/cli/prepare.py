"""Run by `dspark up` as a process of its own: makes the target ready and prints where it lies.

Apart from the command, because preparing may load a model and the command stays small while it supervises.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dspark.cli.keeper import CONFIGURATION_EXIT_CODE
from dspark.errors import DsparkError


def main() -> int:
    """Prepare the target; the last line says `prepared PATH`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target")
    parser.add_argument("--cache-dir", type=Path, required=True)
    args = parser.parse_args()
    try:
        from dspark.models.target import prepare_target

        path = prepare_target(args.target, args.cache_dir)
    except (DsparkError, ImportError) as error:
        print(error, file=sys.stderr)
        return CONFIGURATION_EXIT_CODE
    print(f"prepared {path}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
