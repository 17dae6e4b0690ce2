"""What the tests of models share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deepspec_files import gemma4_target, qwen3_target
from tests.one_thread import one_thread

__all__ = ["one_thread"]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small target of each family."""
    root = tmp_path_factory.mktemp("targets")
    qwen3_target(root / "qwen3")
    gemma4_target(root / "gemma4")
    return {"qwen3": root / "qwen3", "gemma4": root / "gemma4"}
