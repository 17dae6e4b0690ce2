"""Measures what a step costs: the curve the scheduler plans with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from dspark.decoding.acceptance import Judgement, accept_batch
from dspark.decoding.types import Acceptance, SamplingParams
from dspark.engine.attention import RaggedStep
from dspark.engine.layout import Span, causal_layout
from dspark.engine.loading import LoadedTarget
from dspark.engine.pages import PagePool

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Tokens each measured request already has: a short chat.
CONTEXT_LEN = 256
_ROWS_PER_REQUEST = 8
_REPEATS = 5
_GREEDY = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)


def measure_step_cost(target: LoadedTarget, pool: PagePool) -> tuple[tuple[int, float], ...]:
    """Seconds of one verify step by its number of tokens, median of five.

    Each step is what a real one is: requests of a few hundred tokens, up to eight rows each, logits of all
    rows, greedy judgement. Only the keys and values of the context are left as they lie in the pool. Sizes
    for which the pool has not enough free pages are left out.
    """
    points = []
    longest = int(target.config.max_position_embeddings) - _ROWS_PER_REQUEST
    start = max(0, min(CONTEXT_LEN, longest))
    num_pages = -(-(start + _ROWS_PER_REQUEST) // pool.page_size)
    for size in SIZES:
        counts = [_ROWS_PER_REQUEST] * (size // _ROWS_PER_REQUEST) + [size % _ROWS_PER_REQUEST]
        counts = [count for count in counts if count]
        if num_pages * len(counts) > pool.num_free:
            break
        pages = pool.allocate(num_pages * len(counts))
        try:
            spans = [
                Span(start, count, pages[index * num_pages : (index + 1) * num_pages])
                for index, count in enumerate(counts)
            ]
            points.append((size, _median_s(lambda spans=spans: _step(target, pool, spans))))  # type: ignore[misc]
        finally:
            pool.free(pages)
    return tuple(points)


@torch.inference_mode()
def _step(target: LoadedTarget, pool: PagePool, spans: list[Span]) -> None:
    positions, layout = causal_layout(spans, pool.page_size)
    token_ids = positions % target.config.vocab_size
    hidden, _ = target.forward.hidden(token_ids, positions, RaggedStep(pool, layout))
    accept_batch(target.forward.logits(hidden), list(_judgements(spans)))


def _judgements(spans: list[Span]) -> Iterator[Judgement]:
    first_row = 0
    for span in spans:
        drafts = np.zeros(span.num_rows - 1, dtype=np.int32)
        yield Judgement(first_row, span.start + 1, drafts, (), _GREEDY)
        first_row += span.num_rows


def _median_s(step: Callable[[], None]) -> float:
    seconds = []
    for _ in range(_REPEATS + 1):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    # The first step of a size touches new memory.
    return statistics.median(seconds[1:])
