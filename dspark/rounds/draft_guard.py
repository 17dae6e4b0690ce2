"""Stops drafting for a while where it keeps losing against plain decoding, then tries with a few requests."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.scheduling.capacity import CapacityCurve

# Rounds in a row whose plan would have been slower than not drafting at all, before drafting pauses.
_ROUNDS_BEFORE_PAUSE = 4
# Rounds of the first pause; doubles while drafting keeps losing.
_FIRST_PAUSE, _LONGEST_PAUSE = 8, 64
# After a pause one request in so many has a block; while that pays, twice as many in each further round.
_PROBED_ONE_IN = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of each block is verified, and what that promises.

    Attributes:
        prefix_lens: drafts of each request.
        num_admitted: their sum.
        expected: weighted tokens it commits.
        base: weighted tokens without any draft.
        num_requests: of the step.
    """

    prefix_lens: list[int]
    num_admitted: int
    expected: float
    base: float
    num_requests: int

    def speed(self, curve: CapacityCurve) -> float:
        """Weighted tokens per second that it promises."""
        return (self.expected + curve.prompt_gain) / curve.round_s(self.num_requests + self.num_admitted)


class DraftGuard:
    """Looks at plans of earlier rounds only, so it is as causal as the allocation it guards.

    A probe costs a draft that is most likely in vain, at a load where drafts are dear. So it is made for few
    requests, others each time, and grows only as long as it pays for those.
    """

    def __init__(self) -> None:
        self._num_losses = 0
        self._pause_len = _FIRST_PAUSE
        self._num_paused = 0
        # requests drafted for in the round now; None: all
        self._num_probed: int | None = None

    @property
    def is_probing(self) -> bool:
        """Whether it is in doubt that drafting pays."""
        return self._num_probed is not None

    def num_to_draft(self, num_requests: int) -> int:
        """For how many requests to draft, from how that has paid lately; asked once per round."""
        if self._num_paused > 0:
            self._num_paused -= 1
            return 0
        if self._num_probed is None:
            return num_requests
        self._num_probed = min(num_requests, max(self._num_probed, -(-num_requests // _PROBED_ONE_IN)))
        return self._num_probed

    def judge(self, plan: Plan, curve: CapacityCurve, plain_s: float) -> None:
        """Compare a plan with a round that never drafted, and pause drafting after a row of losses.

        Args:
            plan: of a round.
            curve: what the round costs.
            plain_s: seconds of the same round without drafts.
        """
        plain = (plan.base + curve.prompt_gain) / plain_s
        if plan.speed(curve) < plain:
            self._lose()
        elif self._num_probed is not None and self._num_probed < plan.num_requests:
            self._num_probed *= 2
        else:
            self._num_losses, self._pause_len, self._num_probed = 0, _FIRST_PAUSE, None

    def _lose(self) -> None:
        self._num_losses += 1
        if self._num_losses < _ROUNDS_BEFORE_PAUSE:
            return
        # One more losing round after the pause is enough for the next, longer one.
        self._num_losses = _ROUNDS_BEFORE_PAUSE - 1
        self._num_paused = self._pause_len
        self._pause_len = min(2 * self._pause_len, _LONGEST_PAUSE)
        self._num_probed = 0
