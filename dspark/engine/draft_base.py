"""What all draft engines over pages share: contexts that grow by features, and which requests are ready."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict

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
from dspark.engine.attention import RaggedLayout
from dspark.engine.block_slots import BlockSlots, Integers
from dspark.engine.contexts import ContextSpan, ContextTable, DraftContext, Words
from dspark.engine.draft_heads import DraftHeads
from dspark.engine.linear import open_arena
from dspark.engine.pages import PagePool
from dspark.engine.past_blocks import Logits, OnlineCalibration, PastBlock
from dspark.engine.taps import feature_rows
from dspark.models.calibration import Calibration
from dspark.models.drafter import Drafter

# Requests, and slots of each; None: all.
_COST_SIZES = ((1, 2), (1, None), (4, None), (16, None), (48, None))
_COST_CONTEXT = 256
_COST_REPEATS = 5


class DraftOptions(TypedDict, total=False):
    """Keywords of every draft engine.

    Attributes:
        name: of the drafter.
        calibration: of its confidences; without one they stay as they are.
        refits: whether the calibration follows what becomes of the blocks.
        cache_dir: where built kernels are kept.
        allows_int8: whether weights may be rounded to 8 bits where that makes drafts faster.
    """

    name: str
    calibration: Calibration
    refits: bool
    cache_dir: Path | None
    allows_int8: bool


class PagedDraftEngine(ABC):
    """Holds a drafter and the contexts of its requests. Synchronous; one thread uses it.

    Attributes:
        info: what the scheduler needs to know about it.
    """

    # Rows of each context that wait although they have arrived: what follows them is not known yet.
    _rows_held_back = 0

    def __init__(self, drafter: Drafter, pool: PagePool, options: DraftOptions) -> None:
        config = drafter.config
        self._pool, self._config = pool, config
        self._contexts = ContextTable(pool)
        self._arena = open_arena(options.get("cache_dir"), prefers_int8=options.get("allows_int8", False))
        calibration = options.get("calibration") or Calibration.identity(config.gamma)
        self._heads = DraftHeads(drafter, calibration, self._arena)
        self._online = OnlineCalibration(calibration) if options.get("refits", False) else None
        self.info = DrafterInfo(
            name=options.get("name", "drafter"),
            gamma=config.gamma,
            target_layer_ids=config.target_layer_ids,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
        )

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
        waiting = [context for context in held if self._is_waiting(context) and context.is_in_use]
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

        A block has as many slots as its request asks drafts for: a short one costs less.

        Args:
            requests: at most one per request id.
        """
        pairs = [(one, self._contexts.ready(one)) for one in requests]
        ready = [
            (one, context)
            for one, context in pairs
            if context is not None and context.num_pending >= self._rows_held_back
        ]
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
        counts = [min(one.max_drafts, self._config.gamma) for one in asked]
        blocks, logits = self._blocks(asked, contexts, counts)
        if self._online is not None:
            for (one, context), found in zip(fitting, logits, strict=True):
                self._online.note(one, context.last_block)
                context.last_block = PastBlock(one.base_committed_len, found)
        return blocks

    def calibration_errors(self) -> dict[str, Sequence[float]]:
        """Calibration error of the conditional confidences lately, by position, if it is followed."""
        return {} if self._online is None else self._online.errors()

    @abstractmethod
    def _write(self, rows: Tensor, spans: Sequence[ContextSpan]) -> None:
        """Write keys and values of features: rows [T, L*H] of these spans."""

    @abstractmethod
    def _blocks(
        self, requests: Sequence[DraftRequest], contexts: Sequence[DraftContext], counts: Sequence[int]
    ) -> tuple[list[DraftBlock], list[Logits]]:
        """A block of so many slots for each request, and its confidence logits."""

    def _is_waiting(self, context: DraftContext) -> bool:
        """Whether it has features that could become keys and values."""
        return context.num_pending > self._rows_held_back

    def _ingest(self, contexts: Sequence[DraftContext]) -> None:
        """Turn pending features of all contexts into keys and values, in one pass."""
        waiting = [context for context in contexts if self._is_waiting(context)]
        if not waiting:
            return
        pending = [joined(context.pending) for context in waiting]
        counts = [len(rows) - self._rows_held_back for rows in pending]
        spans = [
            ContextSpan(context, context.num_computed, context.num_computed + count)
            for context, count in zip(waiting, counts, strict=True)
        ]
        taken = [rows[:count] for rows, count in zip(pending, counts, strict=True)]
        self._write(feature_rows(joined(taken)).to(self._pool.dtype), spans)
        for span, rows_of_it, count in zip(spans, pending, counts, strict=True):
            rest = rows_of_it[count:].copy()
            span.context.settle(span.last, [rest] if len(rest) else [])

    def _places(self, spans: Sequence[ContextSpan]) -> tuple[Tensor, Tensor]:
        """Absolute positions and pool slots of the rows of these spans, [T] each."""
        size, positions, slots = self._pool.page_size, [], []
        for one in spans:
            index = np.arange(one.first, one.last)
            positions.append(index + one.context.start)
            slots.append(np.array(one.context.pages, dtype=np.int64)[index // size] * size + index % size)
        return torch.from_numpy(np.concatenate(positions)), torch.from_numpy(np.concatenate(slots))

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


def write_layout(slots: Tensor) -> RaggedLayout:
    """A layout that only says where rows are written."""
    nothing = torch.zeros(len(slots), dtype=torch.int32)
    return RaggedLayout(slots, nothing, torch.zeros((1, 1), dtype=torch.int32), nothing)


def joined(parts: Sequence[Words]) -> Words:
    """All rows of some parts, without a copy where there is one part."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
