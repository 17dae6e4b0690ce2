"""Features kept while responses are generated are those that reading the responses gives."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

import dspark.training.features as features_module
from dspark.decoding.types import FinishReason
from dspark.engine.loading import LoadedTarget, load_target
from dspark.training.features import FeatureCache, build_cache
from dspark.training.generate import BatchGenerator, Finished, Job
from dspark.training.kept_features import KeptFeatures
from dspark.training.pipeline import DataPlan, training_engine
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


def build(directory: Path, samples: list[Sample], target: LoadedTarget) -> None:
    build_cache(
        directory, samples, target, TAPS, progress=lambda done, total: None, cache_dir=directory.parent
    )


@pytest.mark.usefixtures("one_thread")
def test_kept_features_are_the_bits_of_a_cache_of_the_same_responses(
    target: LoadedTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = generated(target, tmp_path, keeps_states=True)
    samples = [sample_of(one) for one in finished]
    with closing(KeptFeatures(tmp_path / "kept", [], target, TAPS)) as kept:
        for sample, one in zip(samples, finished, strict=True):
            assert one.states is not None
            kept.append(sample, one.states)
    build(tmp_path / "read", samples, target)

    def refuse(*_: object) -> None:
        raise AssertionError("the target had to read its responses")

    monkeypatch.setattr(features_module, "FeatureExtractor", refuse)
    build(tmp_path / "kept", samples, target)
    FeatureCache([tmp_path / "kept"]).check()
    for name in FILES:
        assert (tmp_path / "kept" / name).read_bytes() == (tmp_path / "read" / name).read_bytes(), name
    assert {one.reason for one in finished} == {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.usefixtures("one_thread")
def test_keeping_states_changes_no_output(target: LoadedTarget, tmp_path: Path) -> None:
    plain, kept = (
        {one.job.job_id: (one.output, one.reason) for one in generated(target, tmp_path, keeps_states=keeps)}
        for keeps in (False, True)
    )
    assert plain == kept
    assert len(plain) == len(jobs())


def test_behind_a_response_without_features_nothing_is_kept(target: LoadedTarget, tmp_path: Path) -> None:
    first, second, *_ = generated(target, tmp_path, keeps_states=True)
    with closing(KeptFeatures(tmp_path / "kept", [sample_of(first)], target, TAPS)) as kept:
        assert second.states is not None
        kept.append(sample_of(second), second.states)
    assert (tmp_path / "kept" / "tokens.bin").stat().st_size == 0
