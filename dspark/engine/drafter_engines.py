"""Reads a drafter directory of any kind into the engine that runs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from dspark.engine.draft import DraftEngine
from dspark.engine.draft_base import DraftOptions, PagedDraftEngine
from dspark.engine.draft_chain import ChainDraftEngine
from dspark.engine.pages import PAGE_SIZE, PagePool
from dspark.models.calibration import Calibration
from dspark.models.chain import ChainDrafter
from dspark.models.checkpoint import load_drafter
from dspark.models.drafter import Drafter, DSparkDrafter


def load_draft_engine(
    path: Path,
    target: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    pool_tokens: int = 131072,
    refits: bool = False,
    cache_dir: Path | None = None,
) -> PagedDraftEngine:
    """Load a drafter directory over its target and measure what a draft costs.

    Args:
        path: directory with `config.json`, `model.safetensors` and perhaps `calibration.json`.
        target: Hugging Face directory of the target, for its embedding, output projection and last norm.
        dtype: of weights and context.
        pool_tokens: context tokens of all requests together.
        refits: whether the calibration follows what becomes of the blocks.
        cache_dir: where built kernels are kept.

    Raises:
        ModelMismatchError: the directory is no drafter, or belongs to another target.
    """
    drafter = load_drafter(path, target, dtype=dtype)
    config = drafter.config
    pool = PagePool(
        num_pages=max(1, pool_tokens // PAGE_SIZE),
        num_layers=config.num_hidden_layers,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        dtype=dtype,
        cache_dir=cache_dir,
    )
    options = DraftOptions(
        name=path.name,
        calibration=Calibration.read(path, config.gamma),
        refits=refits,
        cache_dir=cache_dir,
    )
    engine = make_draft_engine(drafter, pool, options)
    engine.info = replace(engine.info, draft_cost=engine.measure())
    return engine


def make_draft_engine(drafter: Drafter, pool: PagePool, options: DraftOptions) -> PagedDraftEngine:
    """The engine for a drafter of this kind, whose weights it packs."""
    if isinstance(drafter, ChainDrafter):
        return ChainDraftEngine(drafter, pool, **options)
    assert isinstance(drafter, DSparkDrafter), type(drafter)
    return DraftEngine(drafter, pool, **options)
