"""Loads the draft engine for whatever drafter is named, with prompt lookup beside a model where wanted."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from dspark.engine.assisted import AssistedDraftEngine
from dspark.engine.draft_base import PagedDraftEngine
from dspark.engine.drafter_engines import load_draft_engine
from dspark.engine.lookup import DEFAULT_GAMMA, LONGEST_COPY, Lookup, LookupDraftEngine
from dspark.models.config_file import read_config
from dspark.models.method import is_prompt_lookup

AnyDraftEngine = PagedDraftEngine | LookupDraftEngine | AssistedDraftEngine


def tapped_layers(drafter: Path) -> tuple[int, ...]:
    """Target layers whose outputs a drafter reads; prompt lookup reads none.

    Raises:
        ModelMismatchError: the directory is no drafter.
    """
    return () if is_prompt_lookup(drafter) else read_config(drafter).target_layer_ids


def load_engine_for(
    drafter: Path,
    target: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    pool_tokens: int = 131072,
    refits: bool = False,
    cache_dir: Path | None = None,
    with_lookup: bool = False,
    gamma: int | None = None,
) -> AnyDraftEngine:
    """Load a drafter over its target.

    Args:
        drafter: a drafter directory, or `PROMPT_LOOKUP`.
        target: Hugging Face directory of the target.
        dtype: of weights and context.
        pool_tokens: context tokens of all requests together.
        refits: whether the calibration of a model follows what becomes of the blocks.
        cache_dir: where built kernels are kept.
        with_lookup: whether prompt lookup drafts in place of a model where that has been worth more.
        gamma: drafts of a block of prompt lookup; a model has its own.

    Raises:
        ModelMismatchError: the directory is no drafter, or belongs to another target.
    """
    if is_prompt_lookup(drafter):
        hidden_size, vocab_size = _sizes(target)
        return LookupDraftEngine(
            hidden_size=hidden_size,
            vocab_size=vocab_size,
            gamma=gamma or DEFAULT_GAMMA,
            pool_tokens=pool_tokens,
        )
    engine = load_draft_engine(
        drafter, target, dtype=dtype, pool_tokens=pool_tokens, refits=refits, cache_dir=cache_dir
    )
    if not with_lookup:
        return engine
    return AssistedDraftEngine(engine, Lookup(max(engine.info.gamma, LONGEST_COPY), pool_tokens))


def _sizes(target: Path) -> tuple[int, int]:
    """Hidden size and vocabulary of a prepared target."""
    config = json.loads((target / "config.json").read_text())
    config = config.get("text_config") or config
    return config["hidden_size"], config["vocab_size"]
