"""Requests that hold nothing at the verifier, in order of their deadlines."""

from __future__ import annotations

from bisect import insort

from dspark.rounds.request import LiveRequest, Phase


class WaitingQueue:
    """Earliest deadline first; a request that had to give way comes back to its old place.

    What arrives after a request's deadline has a later one, so nobody waits for ever
    (`dspark.scheduling.weights`).
    """

    def __init__(self) -> None:
        self._requests: list[LiveRequest] = []

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def head(self) -> LiveRequest:
        """The request whose turn it is."""
        return self._requests[0]

    def put(self, live: LiveRequest) -> None:
        """Let a request wait."""
        live.phase = Phase.WAITING
        insort(self._requests, live, key=lambda other: other.turn)

    def pop(self) -> LiveRequest:
        """Take the head out."""
        return self._requests.pop(0)

    def remove(self, live: LiveRequest) -> None:
        """Take a request out of its place."""
        self._requests.remove(live)
