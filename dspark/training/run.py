"""One training run from a plan: stages in order, each resumed where it stopped."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dspark.engine.loading import load_target
from dspark.models.checkpoint import save_drafter
from dspark.models.drafter import DSparkDrafter
from dspark.training.calibrate import calibrate
from dspark.training.card import write_card
from dspark.training.features import FeatureCache
from dspark.training.losses import LossWeights
from dspark.training.pipeline import (
    DataPlan,
    DrafterPlan,
    Report,
    cache_features,
    collect_samples,
    generate_data,
    new_drafter,
    split_cache,
    training_engine,
)
from dspark.training.trainer import Trainer, TrainerConfig


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything `dspark train` was told."""

    target: Path
    work: Path
    out: Path
    cache_dir: Path
    data: DataPlan
    features: tuple[Path, ...]
    shape: DrafterPlan
    taps: tuple[int, ...] | None
    init: Path | None
    hours: float
    learning_rate: float
    batch_samples: int
    anchors_per_sample: int
    tv: float
    seed: int
    command: str


def spread_taps(num_layers: int, count: int = 5) -> tuple[int, ...]:
    """Evenly spread target layers, 1 .. N-3, as published drafters use them."""
    count = min(count, max(1, num_layers - 3))
    if count == 1:
        return (1,)
    return tuple(sorted({round(1 + number * (num_layers - 4) / (count - 1)) for number in range(count)}))


def run(plan: RunPlan, report: Report) -> None:
    """Generate, cache, train, calibrate, export.

    Raises:
        ConfigurationError: there is nothing to train on.
        ModelMismatchError: features or the initial drafter belong to another target.
    """
    from transformers import AutoConfig

    plan.work.mkdir(parents=True, exist_ok=True)
    config = AutoConfig.from_pretrained(plan.target)
    cache = _features(plan, config, report)
    drafter, coverage = new_drafter(plan.shape, plan.target, config, cache, seed=plan.seed, init=plan.init)
    if plan.init is None:
        report(f"draft vocabulary of {len(drafter.d2t)} tokens covers {coverage:.1%} of the responses")
    split = split_cache(
        cache,
        drafter,
        batch_samples=plan.batch_samples,
        anchors_per_sample=plan.anchors_per_sample,
        seed=time.time_ns() % 2**32,
    )
    settings = TrainerConfig(
        hours=plan.hours,
        muon_lr=plan.learning_rate,
        adamw_lr=0.75 * plan.learning_rate,
        loss=LossWeights(tv=plan.tv),
    )
    trainer = Trainer(drafter, split.train, split.held_out, settings, plan.work)
    if trainer.resume():
        report("resumed from the last checkpoint")
    rows: list[dict[str, float]] = []

    def note(row: dict[str, float]) -> None:
        rows.append(row)
        report(", ".join(f"{key} {value:.4g}" for key, value in row.items()))

    trainer.run(note, lambda: save_drafter(drafter, plan.work / "drafter"))
    _export(plan, drafter, split.held_out, rows[-1], cache, report)


def _features(plan: RunPlan, config: Any, report: Report) -> FeatureCache:
    if plan.features:
        return FeatureCache(plan.features)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(plan.target)
    taps = plan.taps or spread_taps(config.num_hidden_layers)
    target = load_target(plan.target, dtype=torch.bfloat16, target_layer_ids=taps)
    if plan.data.prompt_files or plan.data.num_self_prompts:
        generate_data(
            plan.work, training_engine(target, plan.cache_dir, plan.data), tokenizer, plan.data, report
        )
    own = plan.work / "responses.jsonl"
    files = (*plan.data.response_files, *((own,) if own.is_file() else ()))
    samples = collect_samples(files, tokenizer, plan.data, target.eos_token_ids[0])
    report(f"{len(samples)} samples, {sum(len(one.token_ids) for one in samples)} tokens")
    return cache_features(plan.work / "features", samples, target, taps, report, plan.cache_dir)


def _export(
    plan: RunPlan,
    drafter: DSparkDrafter,
    held_out: list[Any],
    metrics: dict[str, float],
    cache: FeatureCache,
    report: Report,
) -> None:
    """Write the drafter, its calibration and its card."""
    save_drafter(drafter, plan.out)
    result = calibrate(drafter, held_out)
    result.calibration.write(plan.out)
    write_card(plan.out, drafter.config, command=plan.command, cache=cache, metrics=metrics, result=result)
    report(f"wrote {plan.out}")
