"""Leaves a failing store alone for a while, then tries it once."""

from __future__ import annotations

from collections.abc import Callable


class CircuitBreaker:
    """Closed until `num_failures_to_open` attempts fail in a row; then open for `open_s`, then one probe."""

    def __init__(
        self, now: Callable[[], float], *, num_failures_to_open: int = 3, open_s: float = 1.0
    ) -> None:
        self._now = now
        self._num_failures_to_open = num_failures_to_open
        self._open_s = open_s
        self._num_failures = 0
        self._open_until_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether attempts are pointless now."""
        return self.pause_s > 0

    @property
    def pause_s(self) -> float:
        """Seconds until the next attempt makes sense; 0 when it does now."""
        return max(0.0, self._open_until_s - self._now())

    def succeed(self) -> None:
        """Note that an attempt worked."""
        self._num_failures = 0
        self._open_until_s = 0.0

    def fail(self) -> None:
        """Note that an attempt failed; one more after a probe opens it again."""
        self._num_failures += 1
        if self._num_failures >= self._num_failures_to_open:
            self._open_until_s = self._now() + self._open_s
