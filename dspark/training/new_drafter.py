"""The drafter a run starts from: of the planned shape, or one that was trained before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dspark.models.checkpoint import build_drafter, read_target_layer, read_target_tensors
from dspark.models.config import DrafterConfig
from dspark.models.drafter import Drafter
from dspark.training.feature_source import FeatureSource
from dspark.training.precision import set_training_dtype, training_dtype
from dspark.training.shapes import DrafterPlan, load_trainable, shape_of
from dspark.training.target_start import copied_layers, copy_layers, start_markov_head
from dspark.training.vocabulary import choose_draft_vocabulary


def new_drafter(
    plan: DrafterPlan, target: Path, config: Any, cache: FeatureSource, *, seed: int, init: Path | None
) -> tuple[Drafter, float]:
    """An initialised drafter and the share of response tokens its draft vocabulary covers.

    Args:
        plan: its shape; of `init`, if that is given, only whether it keeps its heads.
        target: Hugging Face directory.
        config: of the target, as transformers reads it.
        cache: what it will be trained on.
        seed: of the initial weights.
        init: drafter directory to start from.

    Raises:
        ModelMismatchError: `init` does not belong to the target, or cannot be trained here.
    """
    if init is not None:
        return set_training_dtype(load_trainable(init, target, plan), training_dtype()), float("nan")
    tensors = read_target_tensors(target)
    size = min(plan.draft_vocab_size or config.vocab_size, config.vocab_size)
    d2t, coverage = choose_draft_vocabulary(cache, size)
    shape = DrafterConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        num_target_layers=config.num_hidden_layers,
        gamma=plan.gamma,
        **shape_of(plan, config.num_hidden_layers, cache.target_layer_ids),
        draft_vocab_size=size if size < config.vocab_size else 0,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_parameters["rope_theta"],
        max_position_embeddings=config.max_position_embeddings,
    )
    drafter = build_drafter(shape, tensors, d2t if shape.draft_vocab_size else None)
    drafter.initialise(torch.Generator().manual_seed(seed), tensors["norm"])
    if plan.copies_layers:
        numbers = copied_layers(shape.num_hidden_layers, shape.num_target_layers)
        copy_layers(drafter, [read_target_layer(target, number) for number in numbers])
        if drafter.markov_head is not None:
            start_markov_head(drafter.markov_head, tensors["embed"])
    return set_training_dtype(drafter, training_dtype()), coverage
