"""Knows how far the features of each request have come, so that a draft waits only for what is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from dspark.decoding.types import DraftRequest, FeatureBatch


class FeatureArrivals:
    """Belongs to the event loop; a condition variable over arriving features."""

    def __init__(self) -> None:
        # request -> epoch and the position after the last row that came
        self._ends: dict[str, tuple[int, int]] = {}
        # requests whose features did not come in time: they were lost, waiting again would stall the others
        self._given_up: set[str] = set()
        self._next = asyncio.Event()

    def note(self, batches: Iterable[FeatureBatch]) -> None:
        """Take note of features the engine has taken, and wake those who wait."""
        for batch in batches:
            self._ends[batch.request_id] = (batch.epoch, batch.start + len(batch.token_ids))
            self._given_up.discard(batch.request_id)
        self._next.set()
        self._next = asyncio.Event()

    def next_arrival(self) -> asyncio.Event:
        """Set at the next `note`. Take it before looking at the engine, so that no arrival is missed."""
        return self._next

    def is_expected(self, request: DraftRequest) -> bool:
        """Whether features that the request lacks may still be under way.

        The verifier has sent features up to the anchor, exclusive. When that many rows came and the engine is
        still not ready, earlier ones are missing and nobody will send them again.
        """
        if request.request_id in self._given_up:
            return False
        epoch, end = self._ends.get(request.request_id, (request.epoch, 0))
        return epoch <= request.epoch and (epoch != request.epoch or end < request.base_committed_len - 1)

    def give_up(self, requests: Iterable[DraftRequest]) -> None:
        """Do not wait for these again before features of them come."""
        self._given_up.update(request.request_id for request in requests)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what is known about these."""
        for request_id in request_ids:
            self._ends.pop(request_id, None)
            self._given_up.discard(request_id)
