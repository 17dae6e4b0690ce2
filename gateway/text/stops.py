"""Finds stop strings in text that arrives in pieces, and lets nothing out that may belong to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopScan:
    """What one more piece of text released.

    Attributes:
        text: text that is certain to belong to the output.
        matched: the stop string that ended the output, or None.
    """

    text: str
    matched: str | None = None


class StopMatcher:
    """Scans one output. The string that completes first ends it; of two, the one that began first."""

    def __init__(self, stops: Sequence[str], *, keep_match: bool = False) -> None:
        assert all(stops), "an empty stop string would match everywhere"
        self._stops = tuple(stops)
        self._keep_match = keep_match
        self._held = ""

    def push(self, piece: str, *, may_end: bool = True) -> StopScan:
        """Add text; returns what may be shown, holding back any tail that could begin a stop string.

        A stop string that is completed while nothing `may_end` the output stays in the text for good.
        """
        text = self._held + piece
        match = self._first_match(text, len(self._held)) if may_end else None
        if match is not None:
            start, stop = match
            self._held = ""
            return StopScan(text[: start + len(stop)] if self._keep_match else text[:start], stop)
        cut = len(text) - self._tail_len(text)
        self._held = text[cut:]
        return StopScan(text[:cut])

    def flush(self) -> str:
        """Release the held tail: the output ended and no stop string was completed."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str, num_old: int) -> tuple[int, str] | None:
        """The first stop that ends behind the old characters."""
        found = [
            (start + len(s), start, s)
            for s in self._stops
            if (start := text.find(s, max(0, num_old - len(s) + 1))) >= 0
        ]
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop

    def _tail_len(self, text: str) -> int:
        return max((_overlap(text, stop) for stop in self._stops), default=0)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
