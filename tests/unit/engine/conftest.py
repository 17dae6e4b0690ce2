"""One cache of built kernels and one tiny target for all engine tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_steps import load
from tiny_targets import save_tiny

from dspark.engine.target import TargetEngine
from tests.one_thread import one_thread

__all__ = ["cache_dir", "engine", "one_thread", "tiny_llama"]


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny") / "llama", "llama")


@pytest.fixture
def engine(tiny_llama: Path, cache_dir: Path) -> TargetEngine:
    return load(tiny_llama, cache_dir)
