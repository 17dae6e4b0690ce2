"""Reads a target's weights from a local directory into the fastest forward this machine has for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError

from dspark.engine.attention import ATTENTION_NAME, ragged_attention_forward
from dspark.engine.forward import CausalModel, ModelConfig, StockForward, TargetForward
from dspark.engine.lean import LeanForward, is_lean
from dspark.errors import ConfigurationError, ModelMismatchError
from dspark.models.config import EMBEDDING_TAP
from dspark.models.target import check_family, quiet_transformers


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A target ready to run.

    Attributes:
        name: directory name of the weights.
        config: of the model, as transformers reads it.
        forward: computes hidden states, taps and logits.
        dtype: of the weights and the KV pages.
        eos_token_ids: tokens that end a text.
    """

    name: str
    config: ModelConfig
    forward: TargetForward
    dtype: torch.dtype
    eos_token_ids: tuple[int, ...]


def load_target(
    path: Path,
    *,
    dtype: torch.dtype,
    target_layer_ids: Sequence[int] = (),
    use_kernels: bool = True,
    cache_dir: Path | None = None,
) -> LoadedTarget:
    """Load the model of a Hugging Face directory.

    Args:
        path: as `prepare_target` returns it.
        dtype: of the weights, the KV cache and the computation.
        target_layer_ids: decoder layers whose outputs are tapped; -1: the embedding.
        use_kernels: whether the CPU kernels may be used; off for comparisons.
        cache_dir: where built kernels are kept.

    Raises:
        ConfigurationError: the directory cannot be read.
        ModelMismatchError: the model is of no supported kind, or has no such layers.
    """
    model = _read_model(path, dtype)
    _check_config(model.config, path, target_layer_ids)
    forward: TargetForward
    if use_kernels and is_lean(model, dtype, cache_dir):
        forward = LeanForward(model, target_layer_ids, cache_dir=cache_dir)
    else:
        forward = StockForward(model, target_layer_ids, use_kernels=use_kernels, cache_dir=cache_dir)
    return LoadedTarget(path.name, model.config, forward, dtype, _eos_token_ids(path, model.config))


def _read_model(path: Path, dtype: torch.dtype) -> CausalModel:
    # Imported late: it takes seconds, and who only attends needs nothing of it.
    from transformers import AttentionInterface, AutoModelForCausalLM

    AttentionInterface.register(ATTENTION_NAME, ragged_attention_forward)
    with quiet_transformers():
        try:
            model = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, attn_implementation=ATTENTION_NAME, local_files_only=True
            )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise ConfigurationError(f"target {str(path)!r} cannot be loaded: {error}") from error
    model.requires_grad_(False)
    loaded: CausalModel = model.train(False)
    return loaded


def _check_config(config: ModelConfig, path: Path, target_layer_ids: Sequence[int]) -> None:
    check_family(config.model_type, str(path))
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        raise ModelMismatchError(
            f"target {str(path)!r} has sliding window layers; dspark needs full attention"
        )
    if config.rope_parameters["rope_type"] in ("dynamic", "longrope"):
        raise ModelMismatchError(
            f"target {str(path)!r} has rotary embeddings that depend on the text's length"
        )
    for layer in target_layer_ids:
        if not EMBEDDING_TAP <= layer < config.num_hidden_layers:
            raise ModelMismatchError(
                f"target_layer_ids names layer {layer}; "
                f"target {str(path)!r} has {config.num_hidden_layers} layers"
            )


def _eos_token_ids(path: Path, config: ModelConfig) -> tuple[int, ...]:
    file = path / "generation_config.json"
    known = json.loads(file.read_text()) if file.is_file() else {}
    eos = known.get("eos_token_id", getattr(config, "eos_token_id", None))
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (int(eos),)
