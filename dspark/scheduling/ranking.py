"""The order in which drafts are admitted: by what each adds, then by position, then by request.

What a draft adds is its survival times the weight of its request. It is compared in whole steps of 2**-38, so
that a draft has one place in the order however that is found: one by one (`allocate_early_stop`), or all at
once by sorting one integer per draft, which takes tens of microseconds for hundreds of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
# [g] float32, conditional confidences of one block
Confidences = npt.NDArray[np.float32]

MAX_WEIGHT = 16.0
# A key: what is lacking to the greatest gain, then position, then request.
_SCALE = float(1 << 38)
_GREATEST = int(MAX_WEIGHT * _SCALE)
_REQUEST_BITS, _POSITION_BITS = 14, 6
_PLACE_BITS = _REQUEST_BITS + _POSITION_BITS
_REQUEST_MASK = (1 << _REQUEST_BITS) - 1


def gain_steps(survival: float, weight: float) -> int:
    """What a draft adds to the expected committed tokens, weighted, in steps of `step_size`."""
    return int(survival * weight * _SCALE)


def step_size() -> float:
    """Weighted tokens of one step of a gain."""
    return 1.0 / _SCALE


@dataclass(frozen=True, slots=True)
class RankedDrafts:
    """The drafts of a round in the order of admission.

    Attributes:
        gains: [N], never rising: survival times weight.
        requests: [N], whose draft it is. Those of one request come in the order of its block.
        base: sum of the weights, which is what the round commits without any draft.
        num_requests: with a block or without.
    """

    gains: Floats
    requests: Integers
    base: float
    num_requests: int

    def prefix_lens(self, num_admitted: int) -> list[int]:
        """Drafts of each request among the first `num_admitted`."""
        counts = np.bincount(self.requests[:num_admitted], minlength=self.num_requests)
        prefix_lens: list[int] = counts.tolist()
        return prefix_lens

    def expected(self) -> Floats:
        """[N + 1] weighted tokens that are committed with 0, 1, ... N drafts admitted."""
        sums = np.empty(len(self.gains) + 1)
        sums[0] = self.base
        sums[1:] = self.gains
        # one after the other, as a sum by hand would go
        np.cumsum(sums, out=sums)
        return sums


def rank_drafts(confidences: Sequence[Confidences], weights: Floats | None = None) -> RankedDrafts:
    """Rank all drafts of a round.

    Args:
        confidences: of each request's block, empty where it has none.
        weights: [R], each above 0 and at most `MAX_WEIGHT`; None: all 1.
    """
    num_requests = len(confidences)
    assert num_requests <= _REQUEST_MASK + 1, f"{num_requests} requests in one round"
    # added up one by one, as a search by hand does
    base = float(num_requests) if weights is None else float(sum(weights.tolist()))
    gains, is_draft = by_position(confidences)
    for earlier, later in pairwise(gains):
        later *= earlier
    gains *= _SCALE if weights is None else weights * _SCALE
    keys = _GREATEST - gains.astype(np.int64)
    keys <<= _PLACE_BITS
    keys |= _places(*gains.shape)
    ranked = keys.ravel() if is_draft is None else keys[is_draft]
    ranked.sort()
    steps = (_GREATEST - (ranked >> _PLACE_BITS)).astype(np.float64)
    steps *= step_size()
    return RankedDrafts(
        gains=steps,
        requests=ranked & _REQUEST_MASK,
        base=base,
        num_requests=num_requests,
    )


def by_position(confidences: Sequence[Confidences]) -> tuple[Floats, npt.NDArray[np.bool_] | None]:
    """All blocks as [the longest, R], and which places hold a draft; None: all do."""
    flat = np.frombuffer(b"".join(confidences), np.float32)  # type: ignore[arg-type]
    lengths = list(map(len, confidences))
    assert len(flat) == sum(lengths), "confidences are arrays of float32"
    longest = max(lengths, default=0)
    assert longest < 1 << _POSITION_BITS, f"a block of {longest} drafts"
    if lengths.count(longest) == len(lengths):
        return flat.reshape(len(lengths), longest).T.astype(np.float64, order="C"), None
    is_draft = np.arange(longest) < np.array(lengths)[:, None]
    matrix = np.zeros((len(lengths), longest))
    matrix[is_draft] = flat
    return np.ascontiguousarray(matrix.T), is_draft.T


@lru_cache(maxsize=64)
def _places(longest: int, num_requests: int) -> Integers:
    """Position and request of each draft of full blocks, [the longest, R]."""
    positions = np.arange(longest, dtype=np.int64) << _REQUEST_BITS
    return positions[:, None] | np.arange(num_requests, dtype=np.int64)
