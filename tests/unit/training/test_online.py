"""The target in the loop: the blocks that a cache would give, and training on them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import dspark.training.features as features_module
import dspark.training.online as online_module
from dspark.cli.main import main
from dspark.engine.loading import LoadedTarget, load_target
from dspark.training.blocks import BlockBatch, BlockSampler
from dspark.training.feature_source import FeatureSource
from dspark.training.features import FeatureCache, build_cache
from dspark.training.new_drafter import new_drafter
from dspark.training.online import OnlineFeatures
from dspark.training.recipe import RECIPES
from dspark.training.responses import Sample
from dspark.training.shapes import DrafterPlan
from dspark.training.split import split_cache
from dspark.training.trainer import Trainer, TrainerConfig
from tests.deepspec_files import TAPS, VOCAB, qwen3_target
from tests.one_thread import one_thread

__all__ = ["one_thread"]

RNG = np.random.Generator(np.random.PCG64(0))
SAMPLES = [
    Sample(f"s{number}", tuple(RNG.integers(0, VOCAB, 14 + number % 5).tolist()), 4 + number % 3)
    for number in range(24)
]
FAKE = SimpleNamespace(name="fake", config=SimpleNamespace(hidden_size=4, vocab_size=VOCAB))


class FakeExtractor:
    """Features that are a function of the token alone; counts the samples it ran."""

    ran = 0

    def __init__(self, *_: object) -> None: ...

    def run(self, samples: list[Sample]) -> tuple[torch.Tensor, ...]:
        FakeExtractor.ran += len(samples)
        ids = torch.tensor([token for one in samples for token in one.token_ids]).float()
        rows = ids[:, None].expand(-1, 8).bfloat16()
        return rows, rows[:, :4], ids / 7


@pytest.fixture
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (features_module, online_module):
        monkeypatch.setattr(module, "FeatureExtractor", FakeExtractor)


def cached(directory: Path, target: LoadedTarget) -> FeatureCache:
    build_cache(
        directory, SAMPLES, target, TAPS, progress=lambda done, total: None, cache_dir=directory.parent
    )
    return FeatureCache([directory])


def sampler(source: FeatureSource) -> BlockSampler:
    members = np.arange(len(source))
    t2d = torch.arange(VOCAB)
    return BlockSampler(source, members, t2d, gamma=3, batch_samples=4, anchors_per_sample=5, seed=0)


def same(first: BlockBatch, second: BlockBatch) -> bool:
    pairs = [(getattr(first, one.name), getattr(second, one.name)) for one in fields(BlockBatch)]
    teachers = [(getattr(first.teacher, one), getattr(second.teacher, one)) for one in ("last", "log_norm")]
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in (*pairs, *teachers)
        if a is not first.teacher
    )


@pytest.mark.usefixtures("_fake")
def test_blocks_are_those_of_a_cache(tmp_path: Path) -> None:
    ours = sampler(OnlineFeatures(SAMPLES, FAKE, TAPS, tmp_path))
    theirs = sampler(cached(tmp_path / "features", FAKE))
    assert ours.identity() == theirs.identity(), "a run can go on with either"
    FakeExtractor.ran = 0
    numbers = range(2 * len(ours))
    assert all(same(ours.batch(number), theirs.batch(number)) for number in numbers)
    assert FakeExtractor.ran <= 4 * len(numbers), "each sample of a batch runs once"
    assert not same(ours.batch(0), ours.batch(1))


@pytest.mark.usefixtures("_fake")
def test_no_more_than_the_samples_asked_for_last_are_held(tmp_path: Path) -> None:
    source = OnlineFeatures(SAMPLES, FAKE, TAPS, tmp_path)
    blocks = sampler(source)
    for number in range(3):
        blocks.batch(number)
        assert set(source._held) == set(blocks.members(number))


def trained(source: FeatureSource, target: Path, config: object, work: Path) -> torch.Tensor:
    """All weights after a few steps."""
    work.mkdir()
    plan = DrafterPlan(num_layers=1, gamma=3, markov_rank=8, draft_vocab_size=24)
    torch.manual_seed(0)
    drafter, _ = new_drafter(plan, target, config, source, seed=0, init=None)
    split = split_cache(source, drafter, batch_samples=4, anchors_per_sample=5, seed=0)
    trainer = Trainer(drafter, split.train, split.held_out, TrainerConfig(RECIPES["dspark"], steps=2), work)
    trainer.run(lambda text: None, lambda: None)
    return torch.cat([one.detach().flatten() for one in drafter.parameters()])


@pytest.mark.timeout(120)
def test_a_run_with_the_target_in_the_loop_learns_what_one_from_a_cache_does(tmp_path: Path) -> None:
    config = qwen3_target(tmp_path / "target").config
    target = load_target(tmp_path / "target", dtype=torch.bfloat16, target_layer_ids=TAPS, use_kernels=False)
    online = OnlineFeatures(SAMPLES, target, TAPS, tmp_path)
    cache = cached(tmp_path / "features", target)
    # rows of one sample differ by rounding where other samples are computed beside them
    first, length, _ = cache.index[5]
    rows = np.arange(first, first + length)
    pairs = (
        (online.features(first, first + length), cache.features(first, first + length)),
        (online.last(rows), cache.last(rows)),
        (online.log_norm(rows), cache.log_norm(rows)),
    )
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0.03, atol=0.03)
    runs = [
        trained(source, tmp_path / "target", config, tmp_path / name)
        for name, source in (("a", online), ("b", cache))
    ]
    moved = runs[1] - trained_nothing(cache, tmp_path / "target", config)
    assert (runs[0] - runs[1]).norm() < 0.05 * moved.norm()


def trained_nothing(source: FeatureSource, target: Path, config: object) -> torch.Tensor:
    plan = DrafterPlan(num_layers=1, gamma=3, markov_rank=8, draft_vocab_size=24)
    torch.manual_seed(0)
    drafter, _ = new_drafter(plan, target, config, source, seed=0, init=None)
    return torch.cat([one.detach().flatten() for one in drafter.parameters()])


def test_features_and_the_target_in_the_loop_exclude_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--work", str(tmp_path), "--out", str(tmp_path / "out"), "--online"]
    assert main([*command, "--features", str(tmp_path)]) != 0
    assert "--online computes what --features would read" in capsys.readouterr().err
