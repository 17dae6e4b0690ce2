"""What drafts brought, from the rounds of finished outputs."""

from __future__ import annotations

from collections.abc import Sequence

from dspark.evaluation.generation import Generation


def mean_committed(generations: Sequence[Generation]) -> float:
    """Tokens of the output per round, tau of paper §3.2.2. 0 without rounds.

    A round that ended the text inside its accepted drafts has no bonus token. The prefill and the token it
    chose are no round.
    """
    rounds = [delta for one in generations for delta in one.rounds]
    return sum(len(delta.token_ids) for delta in rounds) / len(rounds) if rounds else 0.0
