"""The draft engine: one parallel pass over all blocks, then the sequential head, token by token."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dspark.decoding.types import (
    Acceptance,
    DraftBlock,
    DrafterInfo,
    DraftRequest,
    FeatureBatch,
    SamplingParams,
)
from dspark.engine.attention import RaggedLayout, paged_attention, write_pages
from dspark.engine.block_slots import BlockSlots, Integers
from dspark.engine.contexts import ContextTable, DraftContext
from dspark.engine.draft_heads import DraftHeads
from dspark.engine.draft_layers import native_backbone
from dspark.engine.linear import open_arena, pack_linears
from dspark.engine.pages import PagePool
from dspark.engine.past_blocks import OnlineCalibration, PastBlock
from dspark.engine.taps import feature_rows
from dspark.models.calibration import Calibration
from dspark.models.checkpoint import load_drafter
from dspark.models.drafter import DSparkDrafter

# Requests, and slots of each; None: all.
_COST_SIZES = ((1, 2), (1, None), (4, None), (16, None), (48, None))
_COST_CONTEXT = 256
_COST_REPEATS = 5


class DraftEngine:
    """Holds a DSpark drafter and the contexts of its requests. Synchronous; one thread uses it.

    Attributes:
        info: what the scheduler needs to know about it.
    """

    def __init__(
        self,
        drafter: DSparkDrafter,
        pool: PagePool,
        *,
        name: str = "drafter",
        calibration: Calibration | None = None,
        refits: bool = False,
        cache_dir: Path | None = None,
    ) -> None:
        config = drafter.config
        self._drafter, self._pool, self._config = drafter, pool, config
        self._contexts = ContextTable(pool)
        self._scale = config.attention_scale
        arena = open_arena(cache_dir)
        self._native = native_backbone(drafter, pool, arena)
        if self._native is None:
            pack_linears(drafter.backbone, arena)
        calibration = calibration or Calibration.identity(config.gamma)
        self._heads = DraftHeads(drafter, calibration, arena)
        self._online = OnlineCalibration(calibration) if refits else None
        self.info = DrafterInfo(
            name=name,
            gamma=config.gamma,
            target_layer_ids=config.target_layer_ids,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
        )

    @classmethod
    def load(
        cls,
        path: Path,
        target: Path,
        *,
        dtype: torch.dtype = torch.bfloat16,
        pool_tokens: int = 131072,
        refits: bool = False,
        cache_dir: Path | None = None,
    ) -> DraftEngine:
        """Load a drafter directory over its target and measure what a draft costs.

        Args:
            path: directory with `config.json`, `model.safetensors` and perhaps `calibration.json`.
            target: Hugging Face directory of the target, for its embedding and output projection.
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
            num_pages=max(1, pool_tokens // 16),
            num_layers=config.num_hidden_layers,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            dtype=dtype,
            cache_dir=cache_dir,
        )
        calibration = Calibration.read(path, config.gamma)
        engine = cls(
            drafter, pool, name=path.name, calibration=calibration, refits=refits, cache_dir=cache_dir
        )
        engine.info = replace(engine.info, draft_cost=engine.measure())
        return engine

    def push(self, batch: FeatureBatch) -> None:
        """Take target features of committed tokens."""
        self._contexts.push(batch)

    @torch.inference_mode()
    def absorb(self) -> None:
        """Turn features that have arrived into keys and values, as far as there are free pages.

        A draft does the same for its requests, but then somebody is waiting for it. Requests that were not
        drafted for lately are left alone: while drafting pauses their features may never be needed.
        """
        held = self._contexts.held()
        waiting = [context for context in held if context.pending and context.is_in_use]
        for context in waiting:
            context.is_in_use = False
        self._ingest(
            [
                context
                for context in waiting
                if self._contexts.reserve(context, context.num_computed + context.num_pending, held)
            ]
        )
        calibration = self._online.learn() if self._online is not None else None
        if calibration is not None:
            self._heads.calibration = calibration

    def is_ready(self, request: DraftRequest) -> bool:
        """Whether all features before the anchor have arrived."""
        return self._contexts.ready(request) is not None

    def close(self, request_ids: Iterable[str]) -> None:
        """Forget these requests; unknown ones are ignored."""
        self._contexts.close(request_ids)

    @property
    def num_free_pages(self) -> int:
        """Pages not held by any context."""
        return self._pool.num_free

    @torch.inference_mode()
    def draft(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """Propose one block for each request that is ready; the others are left out.

        A block has as many slots as its request asks drafts for: a short one costs less. The slots it lacks
        would have been masks behind the others.

        Args:
            requests: at most one per request id.
        """
        pairs = [(one, self._contexts.ready(one)) for one in requests]
        ready = [(one, context) for one, context in pairs if context is not None]
        keep = [context for _, context in ready]
        fitting = [
            (one, context)
            for one, context in ready
            if self._contexts.reserve(
                context, one.base_committed_len - 1 - context.start + self._config.gamma, keep
            )
        ]
        if not fitting:
            return []
        contexts = [context for _, context in fitting]
        for context in contexts:
            context.is_in_use = True
        self._ingest(contexts)
        asked = [one for one, _ in fitting]
        slots = BlockSlots.of([min(one.max_drafts, self._config.gamma) for one in asked])
        blocks, logits = self._heads.draft(asked, slots, self._run_blocks(asked, contexts, slots))
        if self._online is not None:
            for number, (one, context) in enumerate(fitting):
                self._online.note(one, context.last_block)
                context.last_block = PastBlock(one.base_committed_len, logits[slots.rows(number)])
        return blocks

    def calibration_errors(self) -> dict[str, Sequence[float]]:
        """Calibration error of the conditional confidences lately, by position, if it is followed."""
        return {} if self._online is None else self._online.errors()

    def _ingest(self, contexts: Sequence[DraftContext]) -> None:
        """Turn pending features of all contexts into keys and values, in one pass."""
        waiting = [context for context in contexts if context.pending]
        if not waiting:
            return
        backbone = self._drafter.backbone
        parts = [part for context in waiting for part in context.pending]
        rows = feature_rows(parts[0] if len(parts) == 1 else np.concatenate(parts)).to(self._pool.dtype)
        spans = [(context.num_computed, context.num_computed + context.num_pending) for context in waiting]
        indices = [np.arange(first, last) for first, last in spans]
        positions = torch.from_numpy(
            np.concatenate([index + one.start for index, one in zip(indices, waiting, strict=True)])
        )
        slots = torch.from_numpy(
            np.concatenate([self._slots(one, index) for one, index in zip(waiting, indices, strict=True)])
        )
        if self._native is not None:
            self._native.ingest(rows, positions, slots)
        else:
            layout = _write_layout(slots)
            pairs = backbone.context_keys_values(backbone.fuse(rows), positions)
            for layer, (key, value) in enumerate(pairs):
                write_pages(self._pool, layer, key, value, layout)
        for context, (_, last) in zip(waiting, spans, strict=True):
            context.settle(last)

    def _slots(self, context: DraftContext, index: Integers) -> Integers:
        """Pool slots of context-relative token indices."""
        size = self._pool.page_size
        return np.array(context.pages, dtype=np.int64)[index // size] * size + index % size

    def _run_blocks(
        self, requests: Sequence[DraftRequest], contexts: Sequence[DraftContext], slots: BlockSlots
    ) -> Tensor:
        """Hidden states of all block slots, [T, H] (bidirectional inside the block, eq. 3)."""
        lengths = np.array([context.num_computed for context in contexts])
        starts = np.array([context.start for context in contexts])
        index = lengths[slots.request] + slots.offset
        layout = self._layout(contexts, slots, index, (lengths + slots.counts)[slots.request])
        token_ids = np.full(len(index), self._config.mask_token_id)
        token_ids[slots.first[:-1]] = [one.anchor_token for one in requests]
        embeddings = self._drafter.embed(torch.from_numpy(token_ids)).to(self._pool.dtype)
        positions = torch.from_numpy(starts[slots.request] + index)
        if self._native is not None:
            return self._native.blocks(embeddings, positions, layout)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return paged_attention(self._pool, layer, query, key, value, layout, scale=self._scale)

        hidden: Tensor = self._drafter.backbone(embeddings, positions, attend)
        return hidden

    def _layout(
        self, contexts: Sequence[DraftContext], slots: BlockSlots, index: Integers, kv_lens: Integers
    ) -> RaggedLayout:
        """Where the block slots stand that have these indices in their contexts."""
        size, width = self._pool.page_size, max(len(context.pages) for context in contexts)
        table = np.zeros((len(contexts), width), dtype=np.int32)
        for row, context in enumerate(contexts):
            table[row, : len(context.pages)] = context.pages
        pages = table[slots.request, index // size].astype(np.int64)
        return RaggedLayout(
            slots=torch.from_numpy(pages * size + index % size),
            row_request=torch.from_numpy(slots.request.astype(np.int32)),
            page_table=torch.from_numpy(table),
            kv_lens=torch.from_numpy(kv_lens.astype(np.int32)),
        )

    def measure(self) -> tuple[tuple[int, float], ...]:
        """Seconds of one draft by number of slots, the fastest of some, at a middling context."""
        width = len(self._config.target_layer_ids) * self._config.hidden_size
        token_ids = np.zeros(_COST_CONTEXT, dtype=np.int32)
        features = np.zeros((_COST_CONTEXT, width), dtype=np.float32)
        sampling = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)
        points = []
        for size, count in _COST_SIZES:
            num_slots = min(count or self._config.gamma, self._config.gamma)
            names = [f"measure-{number}" for number in range(size)]
            requests = [DraftRequest(name, 1, _COST_CONTEXT + 1, 1, sampling, num_slots) for name in names]
            for name in names:
                self.push(FeatureBatch(name, 1, 0, token_ids, features))
            seconds = []
            for _ in range(_COST_REPEATS + 1):
                started = time.perf_counter()
                self.draft(requests)
                seconds.append(time.perf_counter() - started)
            self.close(names)
            points.append((size * num_slots, min(seconds[1:])))
        return tuple(points)


def _write_layout(slots: Tensor) -> RaggedLayout:
    """A layout that only says where rows are written."""
    nothing = torch.zeros(len(slots), dtype=torch.int32)
    return RaggedLayout(slots, nothing, torch.zeros((1, 1), dtype=torch.int32), nothing)
