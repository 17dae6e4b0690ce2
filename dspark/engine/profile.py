"""Measures what a step costs: the curve the scheduler plans with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from dspark.decoding.acceptance import Judgement, accept_batch
from dspark.decoding.sampling import argmax_with_margin
from dspark.decoding.types import Acceptance, SamplingParams, StepCost
from dspark.engine.attention import RaggedStep
from dspark.engine.layout import Span, causal_layout
from dspark.engine.loading import LoadedTarget
from dspark.engine.pages import PagePool

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)
# Tokens each measured request already has: a short chat.
CONTEXT_LEN = 256
_ROWS_PER_REQUEST = 8
# Longer ones, at which a few steps (rows, requests) tell what attention adds: two with the same rows, whose
# requests share no keys in one and all in the other, and a larger one.
LONG_CONTEXTS = (1024, 2048)
_LONG_STEPS = ((8, 1), (8, 8), (16, 2))
# Repeats of a small step, of one with long contexts and of a large one.
_REPEATS, _LONG_REPEATS, _FEW_REPEATS, _MANY_ROWS = 6, 3, 2, 64
_GREEDY = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A step to be measured: requests of `start` tokens, their rows dealt out in turn."""

    batch_tokens: int
    num_requests: int
    start: int

    @property
    def repeats(self) -> int:
        if self.batch_tokens >= _MANY_ROWS:
            return _FEW_REPEATS
        return _LONG_REPEATS if self.start > CONTEXT_LEN else _REPEATS


def measure_step_cost(target: LoadedTarget, pool: PagePool) -> tuple[StepCost, ...]:
    """Seconds of verify steps by number of tokens and context, the fastest of some: neighbours only ever add.

    Each step is what a real one is: requests of a few hundred tokens, up to eight rows each, logits of all
    rows, greedy judgement; a few steps also with longer requests. Only the keys and values of the context are
    left as they lie in the pool. Steps for which the pool has not enough free pages, or the model not enough
    positions, are left out. The kinds take turns, so that what slows the machine for a while slows all of
    them.
    """
    kinds = _kinds(int(target.config.max_position_embeddings) - _ROWS_PER_REQUEST, pool)
    fastest: dict[_Kind, float] = {}
    for repeat in range(_REPEATS + 1):
        for kind in kinds:
            if repeat > kind.repeats:
                continue
            seconds = _time_step(target, pool, kind)
            # The first step of a size touches new memory.
            if repeat > 0:
                fastest[kind] = min(seconds, fastest.get(kind, seconds))
    return tuple(
        StepCost(kind.batch_tokens, seconds, kind.num_requests, kind.start)
        for kind, seconds in fastest.items()
    )


def _kinds(longest: int, pool: PagePool) -> list[_Kind]:
    start = max(0, min(CONTEXT_LEN, longest))
    short = [_Kind(size, -(-size // _ROWS_PER_REQUEST), start) for size in SIZES]
    long = [
        _Kind(size, num_requests, context)
        for context in LONG_CONTEXTS
        for size, num_requests in _LONG_STEPS
        if context <= longest
    ]
    return [kind for kind in (*short, *long) if kind.num_requests * _num_pages(kind, pool) <= pool.num_free]


def _num_pages(kind: _Kind, pool: PagePool) -> int:
    """Of each request."""
    return -(-(kind.start + _ROWS_PER_REQUEST) // pool.page_size)


def _time_step(target: LoadedTarget, pool: PagePool, kind: _Kind) -> float:
    """Seconds of one step."""
    num_pages = _num_pages(kind, pool)
    each, more = divmod(kind.batch_tokens, kind.num_requests)
    counts = [each + (index < more) for index in range(kind.num_requests)]
    pages = pool.allocate(num_pages * len(counts))
    try:
        spans = [
            Span(kind.start, count, pages[index * num_pages : (index + 1) * num_pages])
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
