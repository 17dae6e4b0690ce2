"""Measures what a step costs: the curve the scheduler plans with."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from dspark.decoding.acceptance import Judgement, accept_batch
from dspark.decoding.sampling import argmax_with_margin
from dspark.decoding.types import Acceptance, SamplingParams
from dspark.engine.attention import RaggedStep
from dspark.engine.layout import Span, causal_layout
from dspark.engine.loading import LoadedTarget
from dspark.engine.pages import PagePool

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)
# Tokens each measured request already has: a short chat.
CONTEXT_LEN = 256
_ROWS_PER_REQUEST = 8
# Repeats of a small and of a large step.
_REPEATS, _FEW_REPEATS, _MANY_ROWS = 6, 2, 64
_GREEDY = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)


def measure_step_cost(target: LoadedTarget, pool: PagePool) -> tuple[tuple[int, float], ...]:
    """Seconds of one verify step by its number of tokens, the fastest of some: neighbours only ever add.

    Each step is what a real one is: requests of a few hundred tokens, up to eight rows each, logits of all
    rows, greedy judgement. Only the keys and values of the context are left as they lie in the pool. Sizes
    for which the pool has not enough free pages are left out. The sizes take turns, so that what slows the
    machine for a while slows all of them.
    """
    longest = int(target.config.max_position_embeddings) - _ROWS_PER_REQUEST
    start = max(0, min(CONTEXT_LEN, longest))
    fastest: dict[int, float] = {}
    for repeat in range(_REPEATS + 1):
        for size in SIZES:
            if size >= _MANY_ROWS and repeat > _FEW_REPEATS:
                break
            seconds = _time_step(target, pool, start, size)
            if seconds is None:
                break
            # The first step of a size touches new memory.
            if repeat > 0:
                fastest[size] = min(seconds, fastest.get(size, seconds))
    return tuple(fastest.items())


def _time_step(target: LoadedTarget, pool: PagePool, start: int, size: int) -> float | None:
    """Seconds of one step of `size` tokens; None where the pool is too small for it."""
    counts = [_ROWS_PER_REQUEST] * (size // _ROWS_PER_REQUEST) + [size % _ROWS_PER_REQUEST]
    counts = [count for count in counts if count]
    num_pages = -(-(start + _ROWS_PER_REQUEST) // pool.page_size)
    if num_pages * len(counts) > pool.num_free:
        return None
    pages = pool.allocate(num_pages * len(counts))
    try:
        spans = [
            Span(start, count, pages[index * num_pages : (index + 1) * num_pages])
            for index, count in enumerate(counts)
        ]
        started = time.perf_counter()
        _step(target, pool, spans)
        return time.perf_counter() - started
    finally:
        pool.free(pages)


@torch.inference_mode()
def _step(target: LoadedTarget, pool: PagePool, spans: list[Span]) -> None:
    positions, layout = causal_layout(spans, pool.page_size)
    token_ids = positions % target.config.vocab_size
    hidden, _ = target.forward.hidden(token_ids, positions, RaggedStep(pool, layout))
    find_best = argmax_with_margin if pool.kernels is None else pool.kernels.best_two
    accept_batch(target.forward.logits(hidden), list(_judgements(spans)), find_best=find_best)


def _judgements(spans: list[Span]) -> Iterator[Judgement]:
    first_row = 0
    for span in spans:
        drafts = np.zeros(span.num_rows - 1, dtype=np.int32)
        yield Judgement(first_row, span.start + 1, drafts, (), _GREEDY)
        first_row += span.num_rows
