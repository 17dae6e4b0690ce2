"""What drafts were worth, counted over rounds as DeepSpec counts (its `acceptance_length` and neighbours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dspark.evaluation.offline.results import Rounds


@dataclass(frozen=True, slots=True)
class Accepted:
    """Figures of some rounds; means are over rounds, not over outputs.

    A round ended by an end of text among its accepted drafts has no bonus token, and its drafts behind that
    end were not proposed. The last round of an output counts whole although it may run over the limit.

    Attributes:
        accept_len: DeepSpec's accepted length (the paper's tau): tokens per round, bonus token included.
        mean_committed: the same for the part of each round that lies within the output limit.
        mean_accepted: drafts accepted per round.
        mean_proposed: drafts judged per round, DeepSpec's `#propose` without its "+1".
        verify_rate: tokens committed per token verified, the paper's acceptance rate of Fig. 5.
        accept_rate: [G] share of the drafts at a position that were accepted with all before them, of all
            proposed there; None where nothing was.
        conditional: [G] the same of those whose predecessors were all accepted (Fig. 2).
        num_judged: [G] how many those were.
    """

    num_rounds: int
    accept_len: float
    mean_committed: float
    mean_accepted: float
    mean_proposed: float
    verify_rate: float
    accept_rate: tuple[float | None, ...]
    conditional: tuple[float | None, ...]
    num_judged: tuple[int, ...]


def count_accepted(rounds: Rounds, gamma: int, max_new_tokens: int) -> Accepted:
    """Count; zeros without rounds.

    Args:
        rounds: of one pass.
        gamma: drafts of a whole block.
        max_new_tokens: limit of the outputs.
    """
    accepted, proposed, num_rounds = rounds.accepted, rounds.proposed, len(rounds)
    num_committed, num_proposed = int(rounds.committed.sum()), int(proposed.sum())
    places = np.arange(gamma)
    is_proposed = proposed[:, None] > places
    is_accepted = accepted[:, None] > places
    is_judged = is_proposed & (accepted[:, None] >= places)
    survived, judged = is_accepted.sum(axis=0), is_judged.sum(axis=0)
    within = np.minimum(rounds.committed, np.maximum(max_new_tokens - rounds.start, 0))
    num_within = int((within > 0).sum())
    return Accepted(
        num_rounds=num_rounds,
        accept_len=num_committed / max(num_rounds, 1),
        mean_committed=int(within.sum()) / max(num_within, 1),
        mean_accepted=int(accepted.sum()) / max(num_rounds, 1),
        mean_proposed=num_proposed / max(num_rounds, 1),
        verify_rate=num_committed / max(num_proposed + num_rounds, 1),
        accept_rate=_shares(survived, is_proposed.sum(axis=0)),
        conditional=_shares(survived, judged),
        num_judged=tuple(judged.tolist()),
    )


def _shares(good: np.ndarray, total: np.ndarray) -> tuple[float | None, ...]:
    pairs = zip(good.tolist(), total.tolist(), strict=True)
    return tuple(part / whole if whole else None for part, whole in pairs)
