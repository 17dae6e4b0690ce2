"""Where converted targets, built kernels and measurements are kept: one rule for everything in here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def default_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """$DSPARK_CACHE, else `dspark` below $XDG_CACHE_HOME or ~/.cache."""
    if explicit := environ.get("DSPARK_CACHE"):
        return Path(explicit).expanduser().absolute()
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "dspark"
