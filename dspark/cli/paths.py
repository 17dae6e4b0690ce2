"""Names the default target and finds the drafter that ships with the package."""

from __future__ import annotations

from pathlib import Path

DEFAULT_TARGET_NAME = "SmolLM2-135M-Instruct"


def shipped_drafter_dir() -> Path:
    """Where the drafter for the default target lies when this copy of the package has one."""
    return Path(__file__).parent.parent / "drafters" / "smollm2-135m-instruct"


def is_drafter_dir(path: Path) -> bool:
    """Whether a checkpoint lies there."""
    return (path / "config.json").is_file()
