"""A drafter, a feature cache and a trainer small enough for a run to take a moment."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dspark.models.checkpoint import build_drafter
from dspark.models.drafter import DSparkDrafter
from dspark.training.distribution import Sharding
from dspark.training.features import FeatureCache
from dspark.training.precision import set_training_dtype
from dspark.training.recipe import RECIPES, Recipe
from dspark.training.split import split_cache
from dspark.training.trainer import Trainer, TrainerConfig
from tests.tiny_drafters import TINY

CONFIG = replace(TINY, num_hidden_layers=1, gamma=3, draft_vocab_size=0, head_dim=8)
RECIPE: Recipe = RECIPES["dspark"]


def make_drafter(seed: int = 0, gamma: int = CONFIG.gamma) -> DSparkDrafter:
    """A drafter of the one target; the seed is that of its own weights."""
    generator = torch.Generator().manual_seed(0)
    shape = (CONFIG.vocab_size, CONFIG.hidden_size)
    target = {name: torch.randn(shape, generator=generator) * 0.3 for name in ("embed", "head")}
    torch.manual_seed(seed)  # the bias of the confidence head
    drafter = build_drafter(replace(CONFIG, gamma=gamma), target, None)
    drafter.initialise(torch.Generator().manual_seed(seed), torch.ones(CONFIG.hidden_size))
    return set_training_dtype(drafter, torch.float32)


def write_features(directory: Path, num_samples: int = 24) -> Path:
    """A finished cache of random features of a random target."""
    directory.mkdir(parents=True)
    rng = np.random.Generator(np.random.PCG64(0))
    lengths = rng.integers(12, 30, num_samples)
    count = int(lengths.sum())
    last = torch.from_numpy(rng.standard_normal((count, CONFIG.hidden_size))).bfloat16()
    head = make_drafter().lm_head.float()
    features = torch.from_numpy(rng.standard_normal((count, CONFIG.feature_size))).bfloat16()
    rng.integers(0, CONFIG.vocab_size, count).astype(np.int32).tofile(directory / "tokens.bin")
    for name, rows in (("features.bin", features), ("last.bin", last)):
        rows.view(torch.int16).numpy().tofile(directory / name)
    (last.float() @ head.t()).logsumexp(-1).numpy().tofile(directory / "log_norm.bin")
    index = np.stack((np.cumsum(lengths) - lengths, lengths, np.full(num_samples, 4)), axis=1)
    np.save(directory / "index.npy", index)
    manifest = {
        "num_tokens": count,
        "num_samples": num_samples,
        "target_layer_ids": list(CONFIG.target_layer_ids),
        "hidden_size": CONFIG.hidden_size,
        "vocab_size": CONFIG.vocab_size,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory


def make_trainer(
    features: Path,
    work: Path,
    *,
    steps: int = 6,
    recipe: Recipe = RECIPE,
    micro_batches: int = 1,
    checkpoint_steps: int | None = None,
    drafter: DSparkDrafter | None = None,
    gamma: int = CONFIG.gamma,
    sharding: Sharding = Sharding.DDP,
) -> Trainer:
    drafter = drafter or make_drafter(gamma=gamma)
    work.mkdir(exist_ok=True)
    split = split_cache(
        FeatureCache([features]),
        drafter,
        batch_samples=4,
        anchors_per_sample=5,
        seed=0,
        rule=recipe.anchors,
    )
    config = TrainerConfig(
        recipe,
        steps=steps,
        micro_batches=micro_batches,
        checkpoint_steps=checkpoint_steps,
        sharding=sharding,
    )
    return Trainer(drafter, split.train, split.held_out, config, work)


def weights(drafter: DSparkDrafter) -> torch.Tensor:
    """All trained numbers in one row."""
    return torch.cat([one.detach().flatten() for one in drafter.parameters()])
