"""A Llama and a DSpark drafter of random weights and a vocabulary of few tokens, as directories to load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from dspark.evaluation.generation import EnginePlan, Engines, load_engines
from dspark.models.checkpoint import build_drafter, read_target_tensors, save_drafter
from dspark.models.config import DrafterConfig
from dspark.models.target import quiet_transformers

VOCAB_SIZE = 5
_HIDDEN, _HEADS, _HEAD_DIM, _LAYERS, _CONTEXT = 32, 2, 16, 4, 256
# Wide enough that outputs are neither uniform nor certain.
_WEIGHT_SCALE = 0.25


@dataclass(frozen=True, slots=True)
class TinyDrafter:
    """Which drafter.

    Attributes:
        gamma: drafts of a block.
        draft_ids: the target ids it can draft; empty: all.
        markov_rank: of its sequential head.
        has_confidence_head: without one it is equally sure of all drafts.
        seed: of its weights.
    """

    gamma: int = 4
    draft_ids: tuple[int, ...] = ()
    markov_rank: int = 8
    has_confidence_head: bool = True
    seed: int = 0


def write_tiny_pair(directory: Path, seed: int = 0) -> tuple[Path, Path]:
    """Write both models; returns the directories of target and drafter."""
    target = write_tiny_target(directory / "target", seed)
    return target, write_tiny_drafter(directory / "drafter", target, TinyDrafter(seed=seed))


def load_tiny_engines(directory: Path, seed: int = 0) -> Engines:
    """Write both models and load them, the target in float64."""
    target, drafter = write_tiny_pair(directory, seed)
    return load_engines(EnginePlan(target, drafter, dtype="float64"))


def write_tiny_target(path: Path, seed: int = 0) -> Path:
    """Write a target; returns its directory."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=1,
        head_dim=_HEAD_DIM,
        max_position_embeddings=_CONTEXT,
        initializer_range=_WEIGHT_SCALE,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(path)
    return path


def write_tiny_drafter(path: Path, target: Path, kind: TinyDrafter) -> Path:
    """Write a drafter for the target; returns its directory."""
    config = DrafterConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_attention_heads=_HEADS,
        num_key_value_heads=1,
        head_dim=_HEAD_DIM,
        num_hidden_layers=1,
        num_target_layers=_LAYERS,
        target_layer_ids=(0, 2),
        mask_token_id=0,
        gamma=kind.gamma,
        markov_rank=kind.markov_rank,
        draft_vocab_size=len(kind.draft_ids),
        max_position_embeddings=_CONTEXT,
        has_confidence_head=kind.has_confidence_head,
    )
    draft_ids = torch.tensor(kind.draft_ids) if kind.draft_ids else None
    drafter = build_drafter(config, read_target_tensors(target), draft_ids)
    generator = torch.Generator().manual_seed(kind.seed)
    drafter.initialise(generator, torch.ones(_HIDDEN))
    for parameter in drafter.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, _WEIGHT_SCALE, generator=generator)
    save_drafter(drafter, path)
    return path
