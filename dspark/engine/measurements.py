"""What was measured on this machine, kept on disk: valid for the same weights, hardware and versions only."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import dspark
from dspark.engine.kernels.build import cpu_flags, source_key


class Measurements:
    """Measurements of one target on this machine.

    Attributes:
        key: of the weights, the hardware and the versions they are valid for.
    """

    def __init__(self, path: Path, cache_dir: Path) -> None:
        self._folder = cache_dir / "measurements"
        self.key = _key(path)

    def recall(self, name: str) -> Any | None:
        """What was recorded under this name, or None."""
        try:
            return json.loads(self._file(name).read_text())
        except (OSError, ValueError):
            return None

    def record(self, name: str, value: object) -> None:
        """Keep a JSON value; a full or read-only disk only means that it is measured again."""
        file = self._file(name)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, scratch = tempfile.mkstemp(suffix=".json", dir=self._folder)
            with os.fdopen(handle, "w") as stream:
                json.dump(value, stream)
            os.replace(scratch, file)

    def made_at(self, name: str) -> datetime | None:
        """When this name was recorded, or None."""
        try:
            return datetime.fromtimestamp(self._file(name).stat().st_mtime, UTC)
        except OSError:
            return None

    def forget(self, pattern: str) -> None:
        """Have everything measured again whose name fits, with `*` for any part of it."""
        for file in self._folder.glob(f"{pattern}-{self.key}.json"):
            with contextlib.suppress(OSError):
                file.unlink()

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}-{self.key}.json"


def _key(path: Path) -> str:
    weights = [
        f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}"
        for file in sorted(path.glob("*.safetensors"))
    ]
    config = (path / "config.json").read_text()
    hardware = f"{platform.machine()} {cpu_flags()} {torch.get_num_threads()}"
    versions = f"{torch.__version__} {version('transformers')} {dspark.__version__} {source_key()}"
    return hashlib.sha256("\n".join([config, *weights, hardware, versions]).encode()).hexdigest()[:16]
