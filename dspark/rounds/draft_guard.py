"""Stops drafting for a while where it keeps losing against plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from dspark.scheduling.capacity import CapacityCurve

# Rounds in a row whose plan would have been slower than not drafting at all, before drafting pauses.
_ROUNDS_BEFORE_PAUSE = 4
# Rounds of the first pause; doubles while drafting keeps losing.
_FIRST_PAUSE, _LONGEST_PAUSE = 8, 64


class DraftGuard:
    """Looks at plans of earlier rounds only, so it is as causal as the allocation it guards."""

    def __init__(self) -> None:
        self._num_losses = 0
        self._pause_len = _FIRST_PAUSE
        self._num_paused = 0

    def wants_drafts(self) -> bool:
        """Whether drafting has paid lately; asked once per round."""
        if self._num_paused > 0:
            self._num_paused -= 1
            return False
        return True

    def judge(
        self,
        confidences: Sequence[Sequence[float]],
        prefix_lens: Sequence[int],
        curve: CapacityCurve,
        num_prefill_tokens: int,
    ) -> None:
        """Compare a plan with a round that never drafted, and pause drafting after a row of losses."""
        plain_tokens = len(confidences) + num_prefill_tokens
        expected = float(len(confidences))
        for confidence, prefix_len in zip(confidences, prefix_lens, strict=True):
            alive = 1.0
            for value in confidence[:prefix_len]:
                alive *= value
                expected += alive
        drafted = expected * curve.steps_per_second(plain_tokens + sum(prefix_lens))
        plain = len(confidences) / curve.step_s(plain_tokens)
        if drafted >= plain:
            self._num_losses, self._pause_len = 0, _FIRST_PAUSE
            return
        self._num_losses += 1
        if self._num_losses >= _ROUNDS_BEFORE_PAUSE:
            # One more losing round after the pause is enough for the next, longer one.
            self._num_losses = _ROUNDS_BEFORE_PAUSE - 1
            self._num_paused = self._pause_len
            self._pause_len = min(2 * self._pause_len, _LONGEST_PAUSE)
