"""When to try a failed peer again."""

from __future__ import annotations


class Backoff:
    """Pauses that double from failure to failure and vanish with the first success."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._pause_s = 0.0
        self._until = 0.0

    def is_open(self, now: float) -> bool:
        """Whether the peer may be tried now."""
        return now >= self._until

    def fail(self, now: float) -> float:
        """Note a failure; returns the pause in seconds."""
        self._pause_s = min(self._pause_s * 2.0 or self._first_s, self._longest_s)
        self._until = now + self._pause_s
        return self._pause_s

    def succeed(self) -> None:
        """Note a success."""
        self._pause_s = 0.0
        self._until = 0.0
