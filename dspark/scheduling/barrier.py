"""The verify budget of a round, found from confidences old enough to know nothing of its drafts (paper §5.2).

Losslessness. Let K be the number of drafts that a round verifies. K is a function of confidences of
rounds that ended at least `MIN_AGE` rounds before, so it is independent of this round's drafts. The
drafts that add most fill it (`dspark.scheduling.ranking`). Whether draft k of a request is among them
depends on its survival up to k and on the drafts of *other* requests: the drafts behind k in its own
block survive no better and, by the order of ties, never come before it. So whether draft k is verified
does not depend on its value, which is all that Appendix A of the paper asks for. The search for K may
therefore be global: it compares all budgets, and a staircase of a capacity curve cannot trap it as it
traps an early stop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.ranking import Confidences, Floats
from dspark.scheduling.survival import survival

# A round's drafts follow from the tokens that the round before it committed, and these from the drafts of
# that round: the budget must know neither, as with two rounds in flight both are under way when it is wanted.
MIN_AGE = 2
# Conditional confidence of every position before anything is known.
_PRIOR = 0.6
_NOTHING: Confidences = np.zeros(0, dtype=np.float32)


class CausalityError(AssertionError):
    """A budget was asked of confidences that are too fresh: a mistake of the caller, never of its input."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the drafter said in one round.

    Attributes:
        round_number: of the round whose drafts these confidences are about.
        request_ids: of that round.
        confidences: of their blocks, conditional; empty where a request had none.
    """

    round_number: int
    request_ids: Sequence[str]
    confidences: Sequence[Confidences]


class ConfidenceHistory:
    """The snapshots of the last rounds."""

    def __init__(self) -> None:
        self._snapshots: deque[Snapshot] = deque(maxlen=MIN_AGE + 1)

    def record(self, snapshot: Snapshot) -> None:
        """Keep a snapshot; rounds come in order."""
        assert not self._snapshots or snapshot.round_number > self._snapshots[-1].round_number
        self._snapshots.append(snapshot)

    def before(self, round_number: int) -> Snapshot | None:
        """The latest snapshot that the budget of this round may know; None at the beginning."""
        old_enough = [one for one in self._snapshots if one.round_number <= round_number - MIN_AGE]
        return old_enough[-1] if old_enough else None


def verify_budget(
    snapshot: Snapshot | None,
    round_number: int,
    blocks: Mapping[str, int],
    curve: CapacityCurve,
    *,
    weights: Mapping[str, float] | None = None,
    other_weights: Sequence[float] = (),
) -> int:
    """How many drafts of these blocks together a round verifies.

    Maximises (weighted expected committed tokens) x SPS(B) over all budgets, with the survivals of the
    snapshot. A request that it lacks (it joined, or had no block) is taken to survive like the mean of those
    it has.

    Args:
        snapshot: None while there is none that is old enough.
        round_number: of the round the budget is for.
        blocks: drafts asked for, by the ids of the requests that will have a block.
        curve: cost of the round.
        weights: of the tokens of these requests; None: all 1.
        other_weights: of further requests of the step, which commit one token each.

    Raises:
        CausalityError: the snapshot is younger than `MIN_AGE` rounds.
    """
    if snapshot is not None and snapshot.round_number > round_number - MIN_AGE:
        raise CausalityError(
            f"the budget of round {round_number} may not know the confidences of "
            f"round {snapshot.round_number}"
        )
    if not blocks:
        return 0
    scale = np.array([weights[name] if weights else 1.0 for name in blocks])
    gains = _survivals(snapshot, blocks) * scale[:, None]
    is_asked = np.arange(gains.shape[1]) < np.array(list(blocks.values()))[:, None]
    falling = np.sort(gains[is_asked])[::-1]
    expected = (
        curve.prompt_gain + sum(other_weights) + scale.sum() + np.concatenate(([0.0], np.cumsum(falling)))
    )
    return int(np.argmax(expected / curve.rounds_s(len(other_weights) + len(blocks), len(expected))))


def _survivals(snapshot: Snapshot | None, blocks: Mapping[str, int]) -> Floats:
    """[R, the longest block]; beyond a shorter one it goes on with the mean confidence of the position."""
    known = np.full((len(blocks), max(blocks.values())), np.nan)
    if snapshot is not None:
        said = dict(zip(snapshot.request_ids, snapshot.confidences, strict=True))
        for row, request_id in enumerate(blocks):
            confidence = said.get(request_id, _NOTHING)[: known.shape[1]]
            known[row, : len(confidence)] = confidence
    is_known = ~np.isnan(known)
    counts = is_known.sum(axis=0)
    means = np.where(counts > 0, np.where(is_known, known, 0.0).sum(axis=0) / np.maximum(counts, 1), _PRIOR)
    return survival(np.where(is_known, known, means))
