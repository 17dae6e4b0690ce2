"""Chooses how long a prefix of each block is verified.

Losslessness rests on non-anticipation (paper §3.2.2, Appendix A): whether draft k is verified must not
depend on the value of draft k, nor on anything computed from it, such as confidence[k+1]. For the early
stop and the threshold that holds by construction: confidences come as iterators, and confidence[k+1] is
pulled only after draft k was admitted for good. `confidence[0]` follows from committed tokens alone. A
search that may take admissions back, or that goes on after one that did not pay, would break this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import takewhile

import numpy as np

from dspark.scheduling.capacity import CapacityCurve


def allocate_early_stop(
    confidences: Sequence[Iterable[float]],
    curve: CapacityCurve,
    *,
    base_tokens: int = 0,
) -> list[int]:
    """Algorithm 1 with early stop: admit drafts by falling survival while speed strictly improves.

    Maximises (sum over requests of expected committed tokens) x SPS(B), where B counts one token per
    request, the admitted drafts and `base_tokens`. Ties go to the earlier position, then to the earlier
    request. Optimal where that product has a single peak along the order of admission.

    Args:
        confidences: per request, the conditional confidences of its block; empty for none. Pulled
            lazily.
        curve: measured cost of a step.
        base_tokens: other tokens of the same step (prompt chunks).

    Returns:
        The prefix length of each request.
    """
    prefix_lens = [0] * len(confidences)
    if not confidences:
        return prefix_lens
    streams = [iter(confidence) for confidence in confidences]
    firsts = [(next(stream, None), index) for index, stream in enumerate(streams)]
    # (-survival, position in the block, request)
    candidates = [(-confidence, 0, index) for confidence, index in firsts if confidence is not None]
    heapify(candidates)
    expected_committed = float(len(confidences))
    num_tokens = base_tokens + len(confidences)
    best = expected_committed * curve.steps_per_second(num_tokens)
    while candidates:
        negative_survival, position, index = candidates[0]
        gained = (expected_committed - negative_survival) * curve.steps_per_second(num_tokens + 1)
        if gained <= best:
            break
        best = gained
        expected_committed -= negative_survival
        num_tokens += 1
        prefix_lens[index] = position + 1
        following = next(streams[index], None)
        if following is None:
            heappop(candidates)
        else:
            heapreplace(candidates, (negative_survival * following, position + 1, index))
    return prefix_lens


def allocate_fixed(block_lens: Sequence[int], prefix_len: int) -> list[int]:
    """The same prefix length for all, whatever the load; trivially causal."""
    return [min(block_len, prefix_len) for block_len in block_lens]


def allocate_threshold(confidences: Sequence[Iterable[float]], threshold: float) -> list[int]:
    """Each block up to its first confidence below `threshold` (the diagnostic of the paper's Fig. 5).

    Causal: confidence[k] follows from the drafts before k, and is pulled only once these are admitted.
    """
    prefix_lens = []
    for confidence in confidences:
        admitted = takewhile(lambda value: value >= threshold, confidence)
        prefix_lens.append(sum(1 for _ in admitted))
    return prefix_lens


def allocate_top(confidences: Sequence[Sequence[float]], budget: int) -> list[int]:
    """The `budget` drafts that survive best: ties go to the earlier position, then to the earlier request.

    Causal only where the budget is: see `dspark.scheduling.barrier`, which also says why.
    """
    num_requests, longest = len(confidences), max(map(len, confidences), default=0)
    if budget <= 0 or longest == 0:
        return [0] * num_requests
    # [longest, R], so that a stable sort keeps earlier positions, then earlier requests, first
    conditional = np.zeros((longest, num_requests))
    is_draft = np.zeros((longest, num_requests), dtype=bool)
    for column, confidence in enumerate(confidences):
        conditional[: len(confidence), column] = confidence
        is_draft[: len(confidence), column] = True
    rank = np.where(is_draft, -np.cumprod(conditional, axis=0), np.inf).ravel()
    chosen = np.argsort(rank, kind="stable")[: min(budget, int(is_draft.sum()))]
    prefix_lens: list[int] = np.bincount(chosen % num_requests, minlength=num_requests).tolist()
    return prefix_lens


def allocate_off(num_requests: int) -> list[int]:
    """Plain decoding."""
    return [0] * num_requests
