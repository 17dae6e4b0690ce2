"""Features kept while responses are generated are those that reading the responses gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dspark.training.features as features_module
from dspark.decoding.types import FinishReason
from dspark.engine.loading import LoadedTarget, load_target
from dspark.training.data import DataPlan, training_engine
from dspark.training.features import Add, FeatureCache, build_cache
from dspark.training.generate import BatchGenerator, Finished, Job
from dspark.training.kept_features import kept_rows
from dspark.training.responses import Sample
from tests.deepspec_files import TAPS, VOCAB, qwen3_target
from tests.one_thread import one_thread

__all__ = ["one_thread"]

FILES = ("tokens.bin", "features.bin", "last.bin", "log_norm.bin", "index.npy")
STOPS = tuple(range(0, VOCAB, 9))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LoadedTarget:
    directory = tmp_path_factory.mktemp("target") / "qwen3"
    qwen3_target(directory)
    return load_target(directory, dtype=torch.bfloat16, target_layer_ids=TAPS)


def jobs() -> list[Job]:
    prompts = [tuple((7 * number + place) % VOCAB for place in range(3 + number % 4)) for number in range(7)]
    return [Job(f"j{number}", ids, 1.0, number, {}) for number, ids in enumerate(prompts)]


def generated(target: LoadedTarget, work: Path, *, keeps_states: bool) -> list[Finished]:
    """More jobs than run at once, so that prompts and outputs share steps."""
    engine = training_engine(target, work, DataPlan(batch=3, max_new_tokens=12), keeps_states=keeps_states)
    generator = BatchGenerator(engine, STOPS, max_new_tokens=12, max_running=3, keeps_states=keeps_states)
    return list(generator.run(iter(jobs())))


def sample_of(one: Finished) -> Sample:
    return Sample(one.job.job_id, (*one.job.prompt_ids, *one.output), len(one.job.prompt_ids))


def build(
    directory: Path, samples: list[Sample], target: LoadedTarget, kept: list[Finished] | None = None
) -> None:
    """Samples to read, and behind them those whose states were kept."""

    def more(add: Add) -> None:
        for one in kept or []:
            assert one.states is not None
            add(sample_of(one), kept_rows(target, one.states))

    held = build_cache(
        directory,
        samples,
        target,
        TAPS,
        progress=lambda done, total: None,
        cache_dir=directory.parent,
        more=more,
    )
    assert held == [*samples, *map(sample_of, kept or [])]


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in FILES}


@pytest.mark.usefixtures("one_thread")
def test_kept_features_are_the_bits_of_a_cache_of_the_same_responses(
    target: LoadedTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = generated(target, tmp_path, keeps_states=True)
    samples = [sample_of(one) for one in finished]
    build(tmp_path / "read", samples, target)

    def refuse(*_: object) -> None:
        raise AssertionError("the target had to read its responses")

    monkeypatch.setattr(features_module, "FeatureExtractor", refuse)
    build(tmp_path / "kept", [], target, finished)
    assert contents(tmp_path / "kept") == contents(tmp_path / "read")
    build(tmp_path / "kept", samples, target)
    FeatureCache([tmp_path / "kept"]).check()
    assert contents(tmp_path / "kept") == contents(tmp_path / "read")
    assert {one.reason for one in finished} == {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.usefixtures("one_thread")
def test_keeping_states_changes_no_output(target: LoadedTarget, tmp_path: Path) -> None:
    plain, kept = (
        {one.job.job_id: (one.output, one.reason) for one in generated(target, tmp_path, keeps_states=keeps)}
        for keeps in (False, True)
    )
    assert plain == kept
    assert len(plain) == len(jobs())


@pytest.mark.usefixtures("one_thread")
def test_a_response_without_features_is_read_before_others_are_kept(
    target: LoadedTarget, tmp_path: Path
) -> None:
    first, *others = generated(target, tmp_path, keeps_states=True)
    build(tmp_path / "mixed", [sample_of(first)], target, others)
    build(tmp_path / "read", [sample_of(one) for one in (first, *others)], target)
    assert contents(tmp_path / "mixed") == contents(tmp_path / "read")
