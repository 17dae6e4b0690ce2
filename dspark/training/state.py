"""The resumable state of a run on disk: whole or not there at all, and only for the run that wrote it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dspark.errors import ConfigurationError


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write the state; a crash at any moment leaves either the former file or this one."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def load_state(path: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The state a run left, or None where there is none.

    Args:
        path: of the file.
        identity: what must be as it was when the state was written, for the run to go on as if it had
            never stopped.

    Raises:
        ConfigurationError: something of it differs; says what.
    """
    if not path.is_file():
        return None
    state: dict[str, Any] = torch.load(path, weights_only=True)
    written = state.get("identity", {})
    for key, value in identity.items():
        if written.get(key) != value:
            raise ConfigurationError(
                f"{path} was left by a run with {key} {written.get(key)!r}, this one has {value!r}; "
                "use the same options to go on, or another --work to start anew"
            )
    return state
