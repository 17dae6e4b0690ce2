"""The round loop: takes requests, keeps rounds going while there are any, and outlives its peers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import replace

from dspark.decoding.types import GenerationRequest, TokenDelta
from dspark.errors import (
    ConfigurationError,
    DeadlineError,
    DsparkError,
    ModelMismatchError,
    PeerLostError,
    ServiceUnavailableError,
    StaleEpochError,
)
from dspark.rounds.backoff import Backoff
from dspark.rounds.clock import Clock, MonotonicClock
from dspark.rounds.cohorts import CohortRounds
from dspark.rounds.config import LoopConfig
from dspark.rounds.draft_source import DraftSource
from dspark.rounds.intake import Intake, taken_over_error
from dspark.rounds.interfaces import Drafter, RequestStore, Verifier
from dspark.rounds.planner import Planner
from dspark.rounds.request import LiveRequest, RequestStream
from dspark.rounds.roster import Roster
from dspark.rounds.stats import LoopStats, RoundObserver
from dspark.rounds.target_link import TargetLink

_log = logging.getLogger(__name__)
# How long a loop that stops waits for its peers to free what it held.
_FAREWELL_S = 2.0


class RoundLoop:
    """Owns all requests. `run` is the only task that changes them.

    A failing drafter costs speed; a failing verifier is a pause, after which everything is opened anew
    from its committed tokens. No token is lost, doubled or reordered.
    """

    def __init__(
        self,
        drafter: Drafter | None,
        verifier: Verifier,
        *,
        planner: Planner,
        store: RequestStore | None = None,
        epoch: int = 0,
        config: LoopConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Make a loop whose epochs start at `epoch`, above those of the owners before it."""
        self._config = config or LoopConfig()
        self._clock = clock or MonotonicClock()
        self._planner = planner
        self._link = TargetLink(verifier)
        self._drafts = DraftSource(drafter, self._config, self._clock)
        self._roster = Roster(self._link, self._drafts, store, self._clock)
        self._rounds = CohortRounds(
            self._roster,
            self._drafts,
            self._link,
            planner=planner,
            config=self._config,
            clock=self._clock,
        )
        self._wake = asyncio.Event()
        self._is_ready = asyncio.Event()
        self._intake = Intake(
            self._roster,
            self._link,
            store,
            epoch=epoch,
            config=self._config,
            clock=self._clock,
            wake=self._wake.set,
            check=planner.check,
        )
        self._backoff = Backoff(self._config.first_pause_s, self._config.longest_pause_s)
        self._outage_since_s: float | None = None
        self._num_engine_errors = 0
        self._observer: RoundObserver | None = None

    @property
    def stats(self) -> LoopStats:
        """A snapshot of how the loop fares."""
        counters = self._rounds.counters
        return LoopStats(
            counters=replace(
                counters, num_accepted_tokens_per_pos=list(counters.num_accepted_tokens_per_pos)
            ),
            num_running=self._roster.num_open,
            num_waiting=len(self._roster.waiting),
            num_free_pages=self._link.num_free_pages,
            num_pages=self._link.num_pages,
            service=self._roster.service_stats(),
            num_resumed=self._intake.num_resumed,
            num_draft_failures=self._drafts.num_failures,
            cost_error=self._planner.cost_error,
            num_cohorts=self._rounds.num_cohorts,
            is_verifier_ready=self._link.is_ready,
            is_drafter_ready=self._drafts.is_ready,
        )

    def tell(self, observer: RoundObserver) -> None:
        """Have an observer told about every round from now on."""
        self._observer = observer

    async def wait_until_ready(self) -> None:
        """Wait until the verifier has answered for the first time; from then on `submit` takes requests."""
        await self._is_ready.wait()

    def submit(self, request: GenerationRequest) -> RequestStream:
        """Take a request; iterate over the answer for its deltas, close it to give the request up.

        Raises:
            InvalidRequestError: a field is wrong, or the id is in use.
            ContextTooLongError: the prompt leaves no room for an output.
            OverloadedError: as many requests run and wait as may.
            ServiceUnavailableError: the verifier has not answered yet.
        """
        return self._intake.submit(request)

    def resume(self, request_id: str, received: Sequence[int]) -> AsyncGenerator[TokenDelta, None]:
        """Go on with a request that a scheduler was lost with; iterate and close as with `submit`.

        The deltas begin behind the tokens received. No token is lost or doubled, and the output is the one
        that the lost scheduler would have given, where that is determined (greedy and coupled acceptance).

        Args:
            request_id: as it was submitted.
            received: the output as far as the caller has it.

        Raises:
            UnknownRequestError: there is no store, or it holds nothing of the request.
            ServiceUnavailableError: not now; a later attempt may succeed.
        """
        return self._intake.resume(request_id, received)

    async def run(self) -> None:
        """Serve until cancelled; then every stream that has not ended ends with an error.

        Raises:
            ConfigurationError: the planner cannot work with the measured costs.
            ModelMismatchError: the drafter was made for another vocabulary.
        """
        try:
            await self._drafts.connect()
            while True:
                await self._turn()
        finally:
            self._roster.fail_older_than(
                self._clock.now(), PeerLostError("the scheduler stopped; send the request again")
            )
            await self._release_all()

    async def _release_all(self) -> None:
        """Leave nothing behind at peers that answer in time."""
        with suppress(DsparkError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await self._link.flush()
                await self._drafts.flush()

    async def _turn(self) -> None:
        self._roster.drop_ended()
        try:
            await self._connect()
            await self._link.flush()
            await self._drafts.flush()
            if len(self._roster) == 0:
                self._note_success()
                await self._idle()
                return
            await self._admit()
            if self._roster.num_open > 0:
                report = await self._rounds.run()
                if report is not None:
                    self._note_success()
                    if self._observer is not None:
                        self._observer.on_round(report)
        except (ConfigurationError, ModelMismatchError):
            raise
        except (ServiceUnavailableError, DeadlineError) as error:
            await self._bear_outage(error)
        except DsparkError as error:
            await self._bear_engine_error(error)

    async def _idle(self) -> None:
        """Sleep until there is something to do; look for a missing drafter now and then."""
        self._wake.clear()
        if self._drafts.is_ready or not self._drafts.is_wanted:
            await self._wake.wait()
            return
        waker = asyncio.ensure_future(self._wake.wait())
        sleeper = asyncio.ensure_future(self._clock.sleep(self._config.longest_pause_s))
        try:
            await asyncio.wait((waker, sleeper), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waker.cancel()
            sleeper.cancel()

    async def _connect(self) -> None:
        """Learn about peers that are new or came back."""
        has_news = await self._link.connect()
        self._drafts.connect_in_background()
        has_news |= self._drafts.take_news()
        if not has_news:
            return
        drafter, verifier = self._drafts.info, self._link.info
        if drafter is not None and drafter.vocab_size != verifier.vocab_size:
            raise ModelMismatchError(
                f"drafter {drafter.name} was trained for a vocabulary of {drafter.vocab_size} and target "
                f"{verifier.name} has {verifier.vocab_size}; choose a drafter trained for this target"
            )
        self._planner.learn_costs(verifier, drafter)
        self._rounds.learn_costs(verifier, drafter)
        self._is_ready.set()

    async def _admit(self) -> None:
        """Open the requests whose turn it is and for which there are pages."""
        admitted = []
        while len(self._roster.waiting) > 0 and self._has_room_for(self._roster.waiting.head):
            live = self._roster.move_to_open()
            self._rounds.counters.num_reopens += live.num_opens > 0
            admitted.append(live)
        # `open` starts the epoch here and now, whenever the call itself gets its turn.
        calls = [self._link.open(live.open()) for live in admitted]
        outage: DsparkError | None = None
        for live, error in zip(admitted, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(error, ServiceUnavailableError | DeadlineError):
                outage = error
            elif isinstance(error, StaleEpochError):
                self._roster.lose(live, taken_over_error(live.request_id))
            elif isinstance(error, DsparkError):
                self._roster.fail(live, error)
            elif error is not None:
                raise error
        if outage is not None:
            raise outage

    def _has_room_for(self, live: LiveRequest) -> bool:
        running = self._roster.open
        if not running:
            return True
        if len(running) >= self._config.max_running or self._roster.is_short_of_pages:
            return False
        return sum(map(self._num_pages, running)) + self._num_pages(live) <= self._link.num_pages

    def _num_pages(self, live: LiveRequest) -> int:
        """Pages a request needs for its next round."""
        gamma = self._drafts.info.gamma if self._drafts.info else 0
        return -(-(live.committed_len + gamma + 1) // self._link.info.page_size)

    def _note_success(self) -> None:
        self._outage_since_s = None
        self._num_engine_errors = 0
        self._backoff.succeed()

    async def _bear_outage(self, error: DsparkError) -> None:
        """Pause, after which all is opened anew; give up on requests that have borne it for too long."""
        now = self._clock.now()
        self._rounds.counters.num_step_failures += 1
        self._link.lose()
        for live in self._roster.open:
            self._roster.requeue(live)
        if self._outage_since_s is None:
            self._outage_since_s = now
        patience_s = self._config.patience_s
        if now - self._outage_since_s >= patience_s:
            self._roster.fail_older_than(
                now - patience_s,
                ServiceUnavailableError(f"the verifier has not answered for {patience_s:g} s: {error}"),
            )
        await self._pause(error)

    async def _bear_engine_error(self, error: DsparkError) -> None:
        """Try again from the committed tokens; give up on the requests in a step that keeps failing."""
        self._rounds.counters.num_step_failures += 1
        self._num_engine_errors += 1
        gives_up = self._num_engine_errors >= self._config.max_engine_errors
        for live in self._roster.open:
            if gives_up:
                self._roster.fail(live, error)
            else:
                self._roster.requeue(live)
        if gives_up:
            self._num_engine_errors = 0
        await self._pause(error)

    async def _pause(self, error: DsparkError) -> None:
        pause_s = self._backoff.fail(self._clock.now())
        _log.warning("all streams pause for %.2f s: %s", pause_s, error)
        await self._clock.sleep(pause_s)
