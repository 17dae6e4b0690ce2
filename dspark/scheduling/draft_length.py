"""How many drafts a request asks for, learnt from its own rounds: hopeless ones stop paying for whole blocks.

A drafter's time grows with the slots of its blocks, and a slot that no plan would take is wasted (the paper's
stated limit: it drafts whole blocks even for requests that accept nothing). The length for a round depends on
earlier rounds of the request only, never on the drafts it is about, so no probability changes (the paper's
Appendix A is about plans that look at the draft they schedule).
"""

from __future__ import annotations

# Slots beyond what was scheduled that are drafted all the same, to notice when a request becomes easier.
_PROBE = 1
# Growth after a round in which every draft was scheduled and accepted.
_GROWTH = 2


class DraftLength:
    """Additive increase and decrease around the prefix lengths that were worth verifying."""

    def __init__(self) -> None:
        self._wanted: int | None = None

    def next(self, gamma: int) -> int:
        """Drafts to ask for, 1 to gamma; the whole block while nothing is known."""
        return gamma if self._wanted is None else max(1, min(gamma, self._wanted))

    def learn(self, num_drafted: int, num_scheduled: int, num_accepted: int) -> None:
        """Take in a round that drafted."""
        if num_drafted == 0:
            return
        if num_scheduled == num_drafted:
            self._wanted = num_scheduled + (_GROWTH if num_accepted == num_scheduled else _PROBE)
        else:
            # One step at a time: a single unlucky round says little.
            self._wanted = max(num_drafted - 1, num_scheduled + _PROBE)
