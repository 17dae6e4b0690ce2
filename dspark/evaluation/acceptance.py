"""What drafts were worth, from the rounds of finished outputs.

A round that ended the text inside its accepted drafts has no bonus token. The prefill and the token it
chose are no round.
"""

from __future__ import annotations

from collections.abc import Sequence

from dspark.evaluation.generation import Generation


def mean_committed(generations: Sequence[Generation]) -> float:
    """Tokens of the output per round, tau of paper §3.2.2. 0 without rounds."""
    rounds = [delta for one in generations for delta in one.rounds]
    return sum(len(delta.token_ids) for delta in rounds) / len(rounds) if rounds else 0.0


def accept_len(generations: Sequence[Generation], max_new_tokens: int) -> float:
    """DeepSpec's mean accepted length: tokens per round, over the rounds that began below the output limit.

    The last round counts in full although it may run over the limit, so the outputs must have been given
    room for one more block. 0 without rounds.
    """
    rounds = [delta for one in generations for delta in one.rounds if delta.start < max_new_tokens]
    return sum(len(delta.token_ids) for delta in rounds) / len(rounds) if rounds else 0.0


def mean_accepted(generations: Sequence[Generation], max_new_tokens: int) -> float:
    """Drafts accepted per round, over the rounds that `accept_len` counts. 0 without rounds."""
    rounds = [delta for one in generations for delta in one.rounds if delta.start < max_new_tokens]
    return sum(delta.round.num_accepted for delta in rounds) / len(rounds) if rounds else 0.0


def mean_scheduled(generations: Sequence[Generation]) -> float:
    """Drafts verified per round. 0 without rounds."""
    rounds = [delta for one in generations for delta in one.rounds]
    return sum(delta.round.num_scheduled for delta in rounds) / len(rounds) if rounds else 0.0


def conditional_acceptance(generations: Sequence[Generation], gamma: int) -> list[float]:
    """Share of drafts accepted at each position, of those whose predecessors were all accepted (Fig. 2).

    Returns:
        [G'] up to the last position that was ever judged.
    """
    judged, accepted = [0] * gamma, [0] * gamma
    for delta in (delta for one in generations for delta in one.rounds):
        num_accepted = delta.round.num_accepted
        has_ended_inside = num_accepted == len(delta.token_ids)
        last = num_accepted if has_ended_inside else num_accepted + 1
        for position in range(min(delta.round.num_scheduled, last)):
            judged[position] += 1
            accepted[position] += position < num_accepted
    return [good / total for good, total in zip(accepted, judged, strict=True) if total]
