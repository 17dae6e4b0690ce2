"""Loads the draft engine for whatever drafter is named, with prompt lookup beside a model where wanted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from dspark.engine.assisted import AssistedDraftEngine
from dspark.engine.draft import DraftEngine
from dspark.engine.draft_base import DraftOptions, PagedDraftEngine
from dspark.engine.draft_chain import ChainDraftEngine
from dspark.engine.lookup import DEFAULT_GAMMA, LONGEST_COPY, Lookup, LookupDraftEngine
from dspark.engine.pages import PAGE_SIZE, PagePool
from dspark.models.calibration import Calibration
from dspark.models.chain import ChainDrafter
from dspark.models.checkpoint import load_drafter
from dspark.models.config import DrafterConfig
from dspark.models.config_file import read_config
from dspark.models.drafter import Drafter, DSparkDrafter
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
    allows_int8: bool = True,
) -> AnyDraftEngine:
    """Load a drafter over its target; what a draft of a model costs is measured.

    Args:
        drafter: a drafter directory, or `PROMPT_LOOKUP`.
        target: Hugging Face directory of the target.
        dtype: of weights and context.
        pool_tokens: context tokens of all requests together.
        refits: whether the calibration of a model follows what becomes of the blocks.
        cache_dir: where built kernels are kept.
        with_lookup: whether prompt lookup drafts in place of a model where that has been worth more.
        gamma: drafts of a block of prompt lookup; a model has its own.
        allows_int8: whether weights in bfloat16 may be rounded to 8 bits where that makes drafts faster: a
            CPU without instructions for bfloat16 then waits for half the bytes. No output depends on it.

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
    model = load_drafter(drafter, target, dtype=dtype)
    options = DraftOptions(
        name=drafter.name,
        calibration=Calibration.read(drafter, model.config.gamma),
        refits=refits,
        cache_dir=cache_dir,
        allows_int8=allows_int8,
    )
    pool = context_pool(model.config, max(1, pool_tokens // PAGE_SIZE), dtype=dtype, cache_dir=cache_dir)
    engine = make_draft_engine(model, pool, options)
    engine.info = replace(engine.info, draft_cost=engine.measure())
    if not with_lookup:
        return engine
    return AssistedDraftEngine(engine, Lookup(max(engine.info.gamma, LONGEST_COPY), pool_tokens))


def context_pool(
    config: DrafterConfig, num_pages: int, *, dtype: torch.dtype, cache_dir: Path | None = None
) -> PagePool:
    """Pages for the contexts of a drafter's requests."""
    return PagePool(
        num_pages=num_pages,
        num_layers=config.num_hidden_layers,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        dtype=dtype,
        cache_dir=cache_dir,
    )


def make_draft_engine(drafter: Drafter, pool: PagePool, options: DraftOptions) -> PagedDraftEngine:
    """The engine for a drafter of this kind, whose weights it packs."""
    if isinstance(drafter, ChainDrafter):
        return ChainDraftEngine(drafter, pool, **options)
    assert isinstance(drafter, DSparkDrafter), type(drafter)
    return DraftEngine(drafter, pool, **options)


def _sizes(target: Path) -> tuple[int, int]:
    """Hidden size and vocabulary of a prepared target."""
    config = json.loads((target / "config.json").read_text())
    config = config.get("text_config") or config
    return config["hidden_size"], config["vocab_size"]
