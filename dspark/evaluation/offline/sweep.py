"""What a threshold on confidences would do to verified and accepted drafts (paper Fig. 5).

A block is cut at its first confidence below the threshold. The cut looks at confidences only, and a draft is
judged alike however many come behind it, so a whole block that was verified tells exactly what becomes of it
under every threshold. What a threshold changes besides is where the next block begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from dspark.evaluation.offline.accepted import count_accepted
from dspark.evaluation.offline.results import Ints, PassKind, Results, Rounds


class SweepMethod(Enum):
    """Where the figures of a threshold come from.

    WALKED: greedy texts do not depend on the threshold, and a whole block was drafted at every position of
        them: the rounds of any threshold are picked from those. Exact.
    RUN: decoded with that threshold. Exact for these random numbers.
    REPLAYED: each block of the full-block run is cut. Exact for these blocks; a run with the threshold would
        start some of its blocks elsewhere.
    """

    WALKED = "walked"
    RUN = "run"
    REPLAYED = "replayed"


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One threshold.

    Attributes:
        mean_verified: drafts verified per round.
        accept_len: tokens committed per round.
        acceptance_rate: tokens committed per token verified, bonus tokens on both sides.
    """

    threshold: float
    method: SweepMethod
    num_rounds: int
    mean_verified: float
    accept_len: float
    acceptance_rate: float


def rounds_by_threshold(
    results: Results, temperature: float, thresholds: Sequence[float]
) -> list[tuple[float, SweepMethod, Rounds]]:
    """The rounds of each threshold, by the most exact way the results allow.

    Args:
        results: of an evaluation.
        temperature: one of it.
        thresholds: least confidences, before any calibration; those that were run replace them.
    """
    if run := results.passes_of(PassKind.THRESHOLD, temperature):
        return [(one.threshold or 0.0, SweepMethod.RUN, one.rounds) for one in run]
    for dense in results.passes_of(PassKind.DENSE, temperature):
        return [(level, SweepMethod.WALKED, walk(dense.rounds, level)) for level in thresholds]
    for full in results.passes_of(PassKind.FULL, temperature):
        if full.rounds.logits is None:
            continue
        return [(level, SweepMethod.REPLAYED, cut_rounds(full.rounds, level)) for level in thresholds]
    return []


def point_of(threshold: float, method: SweepMethod, rounds: Rounds, results: Results) -> SweepPoint:
    """Sum up the rounds of one threshold."""
    counted = count_accepted(rounds, results.gamma, results.max_new_tokens)
    return SweepPoint(
        threshold,
        method,
        counted.num_rounds,
        counted.mean_proposed,
        counted.accept_len,
        counted.verify_rate,
    )


def cut_rounds(rounds: Rounds, threshold: float) -> Rounds:
    """What would have become of every block, had it been cut at its first confidence below a threshold."""
    scheduled = np.minimum(_cut_lens(rounds, threshold), rounds.scheduled)
    accepted = np.minimum(rounds.accepted, scheduled)
    ends = rounds.ended_inside & (accepted == rounds.accepted)
    committed = np.where(ends, accepted, accepted + 1)
    return Rounds(
        rounds.prompt, rounds.start, _ints(scheduled), _ints(accepted), _ints(committed), rounds.logits
    )


def walk(dense: Rounds, threshold: float) -> Rounds:
    """The rounds that greedy decoding with a threshold would have, from blocks at every position."""
    cut = cut_rounds(dense, threshold)
    is_visited = np.zeros(len(cut), dtype=bool)
    prompt, following = -1, 0
    rows = zip(cut.prompt.tolist(), cut.start.tolist(), cut.committed.tolist(), strict=True)
    for place, (own, start, committed) in enumerate(rows):
        if own != prompt:
            prompt, following = own, start
        if start == following:
            is_visited[place] = True
            following = start + committed
    return cut.where(is_visited)


def _cut_lens(rounds: Rounds, threshold: float) -> Ints:
    """[N] drafts before the first whose confidence is below the threshold."""
    assert rounds.logits is not None, "the pass kept no confidences"
    confidence = 1.0 / (1.0 + np.exp(-rounds.logits.astype(np.float64)))
    is_sure = np.nan_to_num(confidence, nan=-1.0) >= threshold
    return _ints(np.logical_and.accumulate(is_sure, axis=1).sum(axis=1))


def _ints(values: npt.NDArray[np.integer]) -> Ints:
    return values.astype(np.int32)
