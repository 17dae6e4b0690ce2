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
from dspark.scheduling.ranking import (
    Confidences,
    Floats,
    RankedDrafts,
    by_position,
    gain_steps,
    step_size,
)


def allocate_early_stop(
    confidences: Sequence[Iterable[float]],
    curve: CapacityCurve,
    *,
    weights: Sequence[float] | None = None,
) -> list[int]:
    """Algorithm 1 with early stop: admit drafts by falling survival while speed strictly improves.

    Maximises (sum over requests of weight x expected committed tokens) x SPS(B), where B counts one token
    per request and the admitted drafts. Ties go to the earlier position, then to the earlier
    request (`dspark.scheduling.ranking`). Optimal where that product has a single peak along the order of
    admission.

    Args:
        confidences: per request, the conditional confidences of its block; empty for none. Pulled
            lazily.
        curve: cost of a round.
        weights: of the requests; None: all 1.

    Returns:
        The prefix length of each request.
    """
    prefix_lens = [0] * len(confidences)
    if not confidences:
        return prefix_lens
    if weights is None:
        weights = [1.0] * len(confidences)
    streams = [iter(confidence) for confidence in confidences]
    firsts = [next(stream, None) for stream in streams]
    alive = [first or 0.0 for first in firsts]
    # (-gain, position in the block, request)
    candidates = [
        (-gain_steps(alive[index], weights[index]), 0, index)
        for index, first in enumerate(firsts)
        if first is not None
    ]
    heapify(candidates)
    expected, step = float(sum(weights)) + curve.prompt_gain, step_size()
    num_tokens = len(confidences)
    best = expected / curve.round_s(num_tokens)
    while candidates:
        negative_gain, position, index = candidates[0]
        speed = (expected - negative_gain * step) / curve.round_s(num_tokens + 1)
        if speed <= best:
            break
        best = speed
        expected -= negative_gain * step
        num_tokens += 1
        prefix_lens[index] = position + 1
        following = next(streams[index], None)
        if following is None:
            heappop(candidates)
        else:
            alive[index] *= following
            heapreplace(candidates, (-gain_steps(alive[index], weights[index]), position + 1, index))
    return prefix_lens


def early_stop_budget(ranked: RankedDrafts, curve: CapacityCurve) -> int:
    """How many of the ranked drafts `allocate_early_stop` admits: the same ones, found for all at once.

    It sees confidences that the lazy search would never have pulled, and cannot use them: what it returns
    is what that search returns, which knows nothing of them (a test compares the two).
    """
    speeds = _speeds(ranked, curve)
    is_slower = speeds[1:] <= speeds[:-1]
    return int(np.argmax(is_slower)) if is_slower.any() else len(is_slower)


def best_budget(ranked: RankedDrafts, curve: CapacityCurve) -> int:
    """The best number of drafts by a search that looks at all of them: NOT causal.

    Lossless only for requests whose output does not depend on how much is verified (greedy and coupled
    acceptance). With rejection sampling it is the leak of the paper's Appendix A.
    """
    return int(np.argmax(_speeds(ranked, curve)))


def _speeds(ranked: RankedDrafts, curve: CapacityCurve) -> Floats:
    """[N + 1] weighted tokens per second with 0, 1, ... N drafts admitted."""
    expected = ranked.expected()
    return (expected + curve.prompt_gain) / curve.rounds_s(ranked.num_requests, len(expected))


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


def threshold_lens(confidences: Sequence[Confidences], threshold: float) -> list[int]:
    """`allocate_threshold` of all blocks at once (a test compares the two)."""
    matrix, is_draft = by_position(confidences)
    is_sure = matrix >= threshold
    if is_draft is not None:
        is_sure &= is_draft
    prefix_lens: list[int] = np.logical_and.accumulate(is_sure, axis=0).sum(axis=0).tolist()
    return prefix_lens


def allocate_off(num_requests: int) -> list[int]:
    """Plain decoding."""
    return [0] * num_requests
