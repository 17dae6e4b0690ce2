"""Checks at start whether a token's logits depend on what else is in the batch.

Where they do not, greedy and coupled outputs are the same at any load; where they do, near-ties may fall
either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.engine.attention import RaggedStep
from dspark.engine.layout import Span, causal_layout
from dspark.engine.loading import LoadedTarget
from dspark.engine.pages import OutOfPagesError, PagePool

_NUM_TOKENS = 37
_NUM_CHECKED = 4


@dataclass(frozen=True, slots=True)
class Exactness:
    """Whether logits are bit-identical whatever else is in the batch, and how that is known."""

    is_exact: bool
    reason: str


@torch.inference_mode()
def check_exactness(target: LoadedTarget, pool: PagePool) -> Exactness:
    """Compute the same tokens whole, in chunks, one by one and beside others; compare every bit.

    Needs a few free pages of the pool and gives them back.
    """
    tokens = _tokens(target, _NUM_TOKENS, seed=0)
    neighbours = [_tokens(target, length, seed=length) for length in (5, 19, 64)]
    pages_of: list[list[int]] = []
    try:
        for sequence in (tokens, *neighbours):
            pages_of.append(pool.allocate(-(-len(sequence) // pool.page_size)))
        whole = _run(target, pool, [(tokens, 0, pages_of[0])])[-_NUM_CHECKED:]
        ways = {
            "in chunks": _in_chunks(target, pool, tokens, pages_of[0], size=7),
            "one by one": _in_chunks(target, pool, tokens, pages_of[0], size=1),
            "beside others": _beside(target, pool, [tokens, *neighbours], pages_of),
        }
    except OutOfPagesError:
        return Exactness(False, "the KV pool is too small to check")
    finally:
        for pages in pages_of:
            pool.free(pages)
    differing = [way for way, logits in ways.items() if not torch.equal(logits[-_NUM_CHECKED:], whole)]
    if differing:
        return Exactness(False, f"logits differ when tokens are computed {' and '.join(differing)}")
    return Exactness(True, "logits are bit-identical whole, in chunks, one by one and beside others")


def _tokens(target: LoadedTarget, length: int, *, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(target.config.vocab_size, (length,), generator=generator).tolist()


def _run(
    target: LoadedTarget, pool: PagePool, parts: Sequence[tuple[Sequence[int], int, Sequence[int]]]
) -> Tensor:
    """Logits of all rows of parts (tokens, start, pages)."""
    spans = [Span(start, len(tokens), pages) for tokens, start, pages in parts]
    positions, layout = causal_layout(spans, pool.page_size)
    token_ids = torch.tensor([token for tokens, _, _ in parts for token in tokens])
    hidden, _ = target.forward.hidden(token_ids, positions, RaggedStep(pool, layout))
    return target.forward.logits(hidden)


def _in_chunks(
    target: LoadedTarget, pool: PagePool, tokens: Sequence[int], pages: Sequence[int], *, size: int
) -> Tensor:
    """Only the last chunks: what stands before them was computed whole a moment ago."""
    first = len(tokens) - _NUM_CHECKED - size
    chunks = [(tokens[start : start + size], start, pages) for start in range(first, len(tokens), size)]
    return torch.cat([_run(target, pool, [chunk]) for chunk in chunks])


def _beside(
    target: LoadedTarget,
    pool: PagePool,
    sequences: Sequence[Sequence[int]],
    pages_of: Sequence[Sequence[int]],
) -> Tensor:
    """The checked rows of the first sequence with the other sequences before them."""
    tokens, *others = sequences
    start = len(tokens) - _NUM_CHECKED
    parts = [(other, 0, pages) for other, pages in zip(others, pages_of[1:], strict=True)]
    return _run(target, pool, [*parts, (tokens[start:], start, pages_of[0])])
