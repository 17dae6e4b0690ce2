"""Exact mode on whole texts: logits are the same, bit for bit, in any cut and in any company."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dspark.decoding.types import VerifierInfo
from dspark.evaluation.exact_speed import ExactCost
from dspark.evaluation.own_forward import OwnForward, Part
from dspark.evaluation.verdict import Check

# Rows of a step: one by one, a few, whole blocks, a page, more than a page; the last of a text is shorter.
CHUNKS = (1, 3, 8, 16, 61)
NUM_OTHERS = 31
_NUM_BESIDE = 8
LEAST_EXACT_SPEED = 0.9


def exact_check(own: OwnForward, info: VerifierInfo, texts: Sequence[Sequence[int]]) -> Check:
    """Compare every logit of every text, computed whole, with other cuts and beside 31 others."""
    differing: set[str] = set()
    num_rows = 0
    for text in texts:
        for way, is_same in _ways(own, text):
            num_rows += len(text)
            if not is_same:
                differing.add(way)
    name = f"logits whole, in chunks of {', '.join(map(str, CHUNKS))}, and beside {NUM_OTHERS} others"
    found = f"{num_rows} rows of {len(texts)} texts"
    found += f", differ {', '.join(sorted(differing))}" if differing else ", no bit differs"
    if info.is_exact:
        return Check(name, found, "bit-identical", not differing)
    return Check(name, found, f"shown only, not exact: {info.exact_reason or 'unknown'}", True)


def exact_speed_check(costs: Sequence[ExactCost], info: VerifierInfo) -> Check:
    """Whether exact kernels are hardly slower than inexact ones, at every size of a step."""
    name = "speed of exact kernels against the fastest inexact ones"
    found = "; ".join(
        f"{cost.num_rows} rows {cost.speed:.2f}x ({1e3 * cost.exact_s:.1f} ms, {' and '.join(cost.inexact)} "
        f"{1e3 * cost.inexact_s:.1f} ms)"
        for cost in costs
    )
    if not info.is_exact:
        return Check(name, found, "shown only, not exact", True)
    is_met = all(cost.speed >= LEAST_EXACT_SPEED for cost in costs)
    return Check(name, found, f">= {LEAST_EXACT_SPEED:g}x each", is_met)


def _ways(own: OwnForward, text: Sequence[int]) -> Iterator[tuple[str, bool]]:
    """Each way to compute a text, and whether it gives what computing it whole gives."""
    pages = own.pages(len(text))
    try:
        whole = own.step([Part(text, 0, pages)])
        for size in CHUNKS:
            yield f"in chunks of {size}", torch.equal(_in_chunks(own, text, pages, size), whole)
        # What stands before the last rows was computed a moment ago.
        start = max(0, len(text) - _NUM_BESIDE)
        beside = _beside_others(own, Part(text[start:], start, pages))
        yield f"beside {NUM_OTHERS} others", torch.equal(beside, whole[start:])
    finally:
        own.pool.free(pages)


def _in_chunks(own: OwnForward, text: Sequence[int], pages: Sequence[int], size: int) -> Tensor:
    parts = [Part(text[start : start + size], start, pages) for start in range(0, len(text), size)]
    return torch.cat([own.step([part]) for part in parts])


def _beside_others(own: OwnForward, part: Part) -> Tensor:
    """The rows of a part, in the middle of texts of other lengths."""
    generator = torch.Generator().manual_seed(len(part.token_ids))
    vocab_size = own.target.config.vocab_size
    others = []
    try:
        for length in range(1, NUM_OTHERS + 1):
            token_ids = torch.randint(vocab_size, (length,), generator=generator).tolist()
            others.append(Part(token_ids, 0, own.pages(length)))
        before, behind = others[: NUM_OTHERS // 2], others[NUM_OTHERS // 2 :]
        first = sum(len(other.token_ids) for other in before)
        return own.step([*before, part, *behind])[first : first + len(part.token_ids)]
    finally:
        own.pool.free([page for other in others for page in other.pages])
