"""Where requests come in: new ones, and those that another scheduler began."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Sequence

from dspark.decoding.stopping import cut_at_stop
from dspark.decoding.types import GenerationRequest, SamplingParams, TokenDelta
from dspark.errors import (
    InvalidRequestError,
    OverloadedError,
    ServiceUnavailableError,
    StaleEpochError,
    UnknownRequestError,
)
from dspark.rounds.clock import Clock
from dspark.rounds.config import LoopConfig
from dspark.rounds.interfaces import RequestStore
from dspark.rounds.limits import limited_stop
from dspark.rounds.request import LiveRequest, RequestStream, cancelled_delta
from dspark.rounds.roster import Roster
from dspark.rounds.stored import StoredRequest, output_after_loss
from dspark.rounds.target_link import TargetLink
from dspark.scheduling.weights import deadline_s


class Intake:
    """Makes live requests and marks those that are to end; only the loop moves them on."""

    def __init__(
        self,
        roster: Roster,
        link: TargetLink,
        store: RequestStore | None,
        *,
        epoch: int,
        config: LoopConfig,
        clock: Clock,
        wake: Callable[[], None],
        check: Callable[[SamplingParams], None],
    ) -> None:
        self._roster = roster
        self._link = link
        self._store = store
        self._epoch = epoch
        self._config = config
        self._clock = clock
        self._wake = wake
        self._check = check
        self._arrivals = itertools.count()
        self.num_resumed = 0
        if store is not None:
            store.watch(self._lose)

    def submit(self, request: GenerationRequest) -> RequestStream:
        """Take a new request; see `RoundLoop.submit`."""
        live = self._live(request, self._epoch)
        if request.request_id in self._roster:
            raise InvalidRequestError(
                f"request_id {request.request_id} is in use; send every request with its own", "request_id"
            )
        if len(self._roster) >= self._config.max_running + self._config.max_waiting:
            raise OverloadedError(
                f"{self._config.max_waiting} requests are waiting and no more may; try again later",
                self._roster.service_time.wait_s(len(self._roster.waiting), self._roster.num_open),
            )
        return self._start(live)

    async def resume(self, request_id: str, received: Sequence[int]) -> AsyncGenerator[TokenDelta, None]:
        """Go on with a request of a lost scheduler; see `RoundLoop.resume`."""
        stored = await self._claim(request_id)
        async with self._take_over(stored, received) as deltas:
            async for delta in deltas:
                yield delta

    async def _claim(self, request_id: str) -> StoredRequest:
        live = self._roster.get(request_id)
        if live is not None:
            # Its caller lost the connection and came back before we noticed.
            self._cancel(live)
            raise ServiceUnavailableError(f"request {request_id} is being freed; try again soon")
        stored = await self._store.claim(request_id, self._epoch) if self._store is not None else None
        if stored is None:
            raise UnknownRequestError(f"request {request_id} is not in the store; send it again")
        return stored

    def _take_over(self, stored: StoredRequest, received: Sequence[int]) -> RequestStream:
        """Queue what is left of a request, after handing out what its caller has missed.

        The queue's bound is not for it: it was admitted once. Its deadline and its promised speed count from
        now on, as the clock of the lost scheduler is not known.
        """
        live = self._live(stored.request, stored.epoch)
        output, reason = cut_at_stop(output_after_loss(stored, received), 0, live.stop)
        live.output.extend(output)
        self.num_resumed += 1
        num_received = len(received)
        if reason is not None or len(output) > num_received:
            missed = TokenDelta(live.request_id, num_received, output[num_received:], finish_reason=reason)
            live.events.put_nowait(missed)
        return self._start(live) if reason is None else RequestStream(live, self._cancel)

    def _live(self, request: GenerationRequest, epoch: int) -> LiveRequest:
        self._check(request.sampling)
        now_s = self._clock.now()
        return LiveRequest(
            request,
            arrival=next(self._arrivals),
            stop=limited_stop(request, self._link.info),
            arrival_s=now_s,
            deadline_s=deadline_s(request.service, now_s),
            epoch=epoch,
            rounds_before_resync=self._config.rounds_before_resync,
        )

    def _start(self, live: LiveRequest) -> RequestStream:
        self._roster.add(live)
        self._wake()
        return RequestStream(live, self._cancel)

    def _cancel(self, live: LiveRequest) -> None:
        live.is_cancelled = True
        live.events.put_nowait(cancelled_delta(live))
        self._wake()

    def _lose(self, request_id: str) -> None:
        """End the work on a request at once; the caller hears no token that the new owner may not know."""
        live = self._roster.get(request_id)
        if live is not None:
            live.is_lost = True
            live.events.put_nowait(taken_over_error(request_id))
            self._wake()


def taken_over_error(request_id: str) -> StaleEpochError:
    """Why a request ends where it no longer belongs."""
    return StaleEpochError(f"another scheduler has taken over request {request_id}")
