"""One training run from a plan: stages in order, each resumed where it stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dspark.engine.loading import LoadedTarget, load_target
from dspark.errors import ConfigurationError
from dspark.models.checkpoint import save_drafter
from dspark.models.drafter import Drafter
from dspark.training.calibrate import calibrate
from dspark.training.card import write_card
from dspark.training.data import (
    DataPlan,
    Report,
    cache_features,
    collect_samples,
    generate_data,
    training_engine,
)
from dspark.training.distribution import Sharding
from dspark.training.feature_source import FeatureSource
from dspark.training.features import Add, FeatureCache
from dspark.training.generate import done_ids
from dspark.training.kept_features import kept_rows
from dspark.training.metrics import MetricsLog
from dspark.training.new_drafter import new_drafter
from dspark.training.online import OnlineFeatures
from dspark.training.recipe import Recipe
from dspark.training.responses import Sample
from dspark.training.shapes import DrafterPlan
from dspark.training.split import split_cache
from dspark.training.trainer import Trainer, TrainerConfig
from dspark.training.world import World, join_world


@dataclass(frozen=True, slots=True)
class RunLength:
    """How long to train: exactly one of these."""

    hours: float | None = None
    steps: int | None = None
    epochs: float | None = None

    def steps_of(self, steps_per_epoch: float) -> int | None:
        """The run in steps, at least one; None where it has hours."""
        if self.epochs is not None:
            return max(1, round(self.epochs * steps_per_epoch))
        return self.steps


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything `dspark train` was told."""

    target: Path
    work: Path
    out: Path
    cache_dir: Path
    data: DataPlan
    features: tuple[Path, ...]
    is_online: bool
    shape: DrafterPlan
    taps: tuple[int, ...] | None
    init: Path | None
    recipe: Recipe
    length: RunLength
    batch_samples: int
    anchors_per_sample: int
    micro_batches: int
    checkpoint_minutes: float
    checkpoint_steps: int | None
    sharding: Sharding
    has_tensorboard: bool
    seed: int
    command: str


def spread_taps(num_layers: int, count: int = 5) -> tuple[int, ...]:
    """Evenly spread target layers, 1 .. N-3, as published drafters use them."""
    count = min(count, max(1, num_layers - 3))
    if count == 1:
        return (1,)
    return tuple(sorted({round(1 + number * (num_layers - 4) / (count - 1)) for number in range(count)}))


def run(plan: RunPlan, report: Report) -> None:
    """Generate, cache, train, calibrate, export; under torchrun, training is shared among the processes.

    Raises:
        ConfigurationError: there is nothing to train on, or `work` holds another run.
        ModelMismatchError: features or the initial drafter belong to another target, or features are damaged.
    """
    with join_world() as world:
        _run(plan, report if world.is_first else _say_nothing, world)


def _say_nothing(text: str) -> None:
    del text


def _run(plan: RunPlan, report: Report, world: World) -> None:
    from transformers import AutoConfig

    plan.work.mkdir(parents=True, exist_ok=True)
    config = AutoConfig.from_pretrained(plan.target)
    cache = _feature_source(plan, config, world, report)
    torch.manual_seed(plan.seed)
    drafter, coverage = new_drafter(plan.shape, plan.target, config, cache, seed=plan.seed, init=plan.init)
    if plan.init is None:
        report(f"draft vocabulary of {len(drafter.d2t)} tokens covers {coverage:.1%} of the responses")
    split = split_cache(
        cache,
        drafter,
        batch_samples=plan.batch_samples,
        anchors_per_sample=plan.anchors_per_sample,
        seed=plan.seed,
        rule=plan.recipe.anchors,
    )
    settings = TrainerConfig(
        plan.recipe,
        hours=plan.length.hours,
        steps=plan.length.steps_of(len(split.train) / plan.micro_batches),
        micro_batches=plan.micro_batches,
        checkpoint_minutes=plan.checkpoint_minutes,
        checkpoint_steps=plan.checkpoint_steps,
        sharding=plan.sharding,
    )
    log = MetricsLog(plan.work, has_tensorboard=plan.has_tensorboard and world.is_first)
    trainer = Trainer(drafter, split.train, split.held_out, settings, plan.work, world=world, metrics=log)
    if trainer.resume():
        report("resumed from the last checkpoint")
    last = trainer.run(report, lambda: save_drafter(drafter, plan.work / "drafter"))
    log.close()
    if world.is_first:
        _export(plan, drafter, split.held_out, last, cache, report)


def _feature_source(plan: RunPlan, config: Any, world: World, report: Report) -> FeatureSource:
    """Features on disk whose bytes are those of their checksums, or the target itself."""
    if plan.features:
        cache = FeatureCache(plan.features)
        for unknown in cache.check() if world.is_first else ():
            report(f"{unknown} has no checksums, an earlier version made it: it is read unchecked")
        world.wait()
        return cache
    taps = plan.taps or spread_taps(config.num_hidden_layers)
    directory = plan.work / "features"
    if world.is_first or plan.is_online:
        target = load_target(plan.target, dtype=torch.bfloat16, target_layer_ids=taps)
    if world.is_first and plan.is_online:
        _generate(plan, target, report)
    elif world.is_first:
        _cache(plan, directory, target, taps, report)
    world.wait()
    if plan.is_online:
        return OnlineFeatures(_checked(_samples(plan, target), report), target, taps, plan.cache_dir)
    return FeatureCache((directory,))


def _cache(
    plan: RunPlan, directory: Path, target: LoadedTarget, taps: tuple[int, ...], report: Report
) -> None:
    """Write the features of all responses: of new ones as they are made, after those of the others."""
    known = _samples(plan, target)
    if not plan.data.generates:
        cache_features(directory, _checked(known, report), target, taps, report, plan.cache_dir)
        return

    def more(add: Add) -> None:
        _generate(plan, target, report, lambda sample, states: add(sample, kept_rows(target, states)))

    _checked(cache_features(directory, known, target, taps, report, plan.cache_dir, more), report)


def _generate(
    plan: RunPlan,
    target: LoadedTarget,
    report: Report,
    keep: Callable[[Sample, npt.NDArray[np.generic]], None] | None = None,
) -> None:
    """Write the responses that are still to be made; see `generate_data`."""
    if plan.data.generates:
        engine = training_engine(target, plan.cache_dir, plan.data, keeps_states=keep is not None)
        generate_data(plan.work, engine, _tokenizer(plan), plan.data, report, keep)


def _samples(plan: RunPlan, target: LoadedTarget) -> list[Sample]:
    """All responses that there are, as tokens."""
    own = plan.work / "responses.jsonl"
    done_ids(own)  # drops a line that a crash cut off
    files = (*plan.data.response_files, *((own,) if own.is_file() else ()))
    return collect_samples(files, _tokenizer(plan), plan.data, target.eos_token_ids[0])


def _checked(samples: list[Sample], report: Report) -> list[Sample]:
    """Say how many they are.

    Raises:
        ConfigurationError: there are none.
    """
    if not samples:
        raise ConfigurationError(
            "nothing to train on; pass --prompts FILE, --responses FILE or --self-prompts N"
        )
    report(f"{len(samples)} samples, {sum(len(one.token_ids) for one in samples)} tokens")
    return samples


def _tokenizer(plan: RunPlan) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(plan.target)


def _export(
    plan: RunPlan,
    drafter: Drafter,
    held_out: list[Any],
    metrics: dict[str, float],
    cache: FeatureSource,
    report: Report,
) -> None:
    """Write the drafter, its calibration and its card."""
    save_drafter(drafter, plan.out)
    result = calibrate(drafter, held_out)
    result.calibration.write(plan.out)
    write_card(
        plan.out,
        drafter.config,
        command=plan.command,
        cache=cache,
        metrics=metrics,
        result=result,
        recipe=plan.recipe,
    )
    report(f"wrote {plan.out}")
