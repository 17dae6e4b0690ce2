"""A feature cache that was interrupted or damaged keeps what is whole and computes the rest."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import dspark.training.features as features_module
from dspark.errors import ModelMismatchError
from dspark.training.features import FeatureCache, build_cache
from dspark.training.responses import Sample

SAMPLES = [
    Sample(f"s{number}", tuple(range(number, number + 6 + number % 3)), 2 + number % 2) for number in range(9)
]
FILES = ("tokens.bin", "features.bin", "last.bin", "log_norm.bin", "index.npy")
TARGET = SimpleNamespace(name="fake", config=SimpleNamespace(hidden_size=4, vocab_size=40))


class PowerCutError(Exception):
    pass


class FakeExtractor:
    """Features that are a function of the token alone; counts the samples it ran, and may die."""

    ran: int = 0
    dies_after: int | None = None

    def __init__(self, *_: object) -> None: ...

    def run(self, samples: list[Sample]) -> tuple[torch.Tensor, ...]:
        if FakeExtractor.dies_after is not None and FakeExtractor.ran >= FakeExtractor.dies_after:
            raise PowerCutError
        FakeExtractor.ran += len(samples)
        ids = torch.tensor([token for one in samples for token in one.token_ids]).float()
        rows = ids[:, None].expand(-1, 8).bfloat16()
        return rows, rows[:, :4], ids / 7


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features_module, "FeatureExtractor", FakeExtractor)
    FakeExtractor.ran, FakeExtractor.dies_after = 0, None


def build(directory: Path, samples: list[Sample] = SAMPLES) -> int:
    """Build the cache; returns how many samples the target had to run."""
    FakeExtractor.ran = 0
    build_cache(
        directory,
        samples,
        TARGET,
        (1, 2),
        progress=lambda done, total: None,
        cache_dir=directory,
        tokens_per_batch=20,
    )
    return FakeExtractor.ran


def contents(directory: Path) -> list[bytes]:
    return [(directory / name).read_bytes() for name in FILES]


@pytest.fixture
def whole(tmp_path: Path) -> list[bytes]:
    assert build(tmp_path / "whole") == len(SAMPLES)
    return contents(tmp_path / "whole")


def test_an_interrupted_cache_goes_on_with_the_next_sample(tmp_path: Path, whole: list[bytes]) -> None:
    FakeExtractor.ran, FakeExtractor.dies_after = 0, 4
    with pytest.raises(PowerCutError):
        build(tmp_path / "cut")
    with pytest.raises(ModelMismatchError, match="no finished feature cache"):
        FeatureCache([tmp_path / "cut"])
    # a crash may also leave half of a segment, and half of a line
    with (tmp_path / "cut" / "features.bin").open("ab") as file:
        file.write(b"half")
    with (tmp_path / "cut" / "journal.jsonl").open("a") as file:
        file.write('{"num_samples": 2, "dig')
    FakeExtractor.dies_after = None
    assert 0 < build(tmp_path / "cut") < len(SAMPLES)
    assert contents(tmp_path / "cut") == whole


def test_a_finished_cache_is_not_computed_again(tmp_path: Path, whole: list[bytes]) -> None:
    assert build(tmp_path / "whole") == 0
    assert contents(tmp_path / "whole") == whole


def test_further_samples_are_added_to_a_finished_cache(tmp_path: Path) -> None:
    build(tmp_path / "grown", SAMPLES[:6])
    assert build(tmp_path / "grown") == 3
    cache = FeatureCache([tmp_path / "grown"])
    assert len(cache) == len(SAMPLES)
    tokens = [token for one in SAMPLES for token in one.token_ids]
    assert cache.tokens(torch.arange(len(tokens)).numpy()).tolist() == tokens


def test_other_samples_are_not_taken_for_these(tmp_path: Path) -> None:
    others = [Sample(one.sample_id, one.token_ids[::-1], one.prompt_len) for one in SAMPLES]
    build(tmp_path / "a", others)
    assert build(tmp_path / "a") == len(SAMPLES)


def test_a_damaged_byte_is_found_and_only_what_follows_is_computed_again(
    tmp_path: Path, whole: list[bytes]
) -> None:
    path = tmp_path / "whole" / "features.bin"
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ModelMismatchError, match=r"features\.bin is damaged after byte [1-9]"):
        FeatureCache([tmp_path / "whole"]).check()
    assert 0 < build(tmp_path / "whole") <= 3
    assert contents(tmp_path / "whole") == whole
    assert FeatureCache([tmp_path / "whole"]).check() == []


def test_a_cache_without_checksums_is_named(tmp_path: Path, whole: list[bytes]) -> None:
    del whole
    (tmp_path / "whole" / "journal.jsonl").unlink()
    assert FeatureCache([tmp_path / "whole"]).check() == [tmp_path / "whole"]
