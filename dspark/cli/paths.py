"""Where things lie on this machine: the cache, and the drafter that ships with the package."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_TARGET_NAME = "SmolLM2-135M-Instruct"


def cache_dir() -> Path:
    """Directory for prepared targets and measured curves: $DSPARK_CACHE, else below the user's cache."""
    if explicit := os.environ.get("DSPARK_CACHE"):
        return Path(explicit).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "dspark"


def shipped_drafter_dir() -> Path:
    """Where the drafter for the default target lies when this copy of the package has one."""
    return Path(__file__).parent.parent / "drafters" / "smollm2-135m-instruct"


def is_drafter_dir(path: Path) -> bool:
    """Whether a checkpoint lies there."""
    return (path / "config.json").is_file()
