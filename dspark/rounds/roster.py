"""All requests that have not ended: which wait, which the verifier holds, and how each leaves."""

from __future__ import annotations

from collections import Counter

from dspark.decoding.types import FinishReason, TokenDelta, VerifyOutcome
from dspark.errors import DsparkError
from dspark.rounds.clock import Clock
from dspark.rounds.draft_source import DraftSource
from dspark.rounds.interfaces import RequestStore
from dspark.rounds.request import LiveRequest, Phase
from dspark.rounds.service_time import ServiceTime
from dspark.rounds.stats import ServiceStats
from dspark.rounds.target_link import TargetLink
from dspark.rounds.waiting import WaitingQueue
from dspark.scheduling.weights import standing


class Roster:
    """Moves requests between waiting and open, and sees that what leaves frees what it held."""

    def __init__(
        self, link: TargetLink, drafts: DraftSource, store: RequestStore | None, clock: Clock
    ) -> None:
        self._link = link
        self._drafts = drafts
        self._store = store
        self._clock = clock
        self._requests: dict[str, LiveRequest] = {}
        self.waiting = WaitingQueue()
        self.service_time = ServiceTime()
        self._open: dict[str, LiveRequest] = {}
        # After a preemption nobody is admitted until somebody leaves, or the pages would go around.
        self.is_short_of_pages = False

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, request_id: str) -> LiveRequest | None:
        """The request of this id, unless it has ended."""
        return self._requests.get(request_id)

    @property
    def open(self) -> list[LiveRequest]:
        """Requests the verifier holds, in order of arrival."""
        return sorted(self._open.values(), key=lambda live: live.arrival)

    @property
    def num_open(self) -> int:
        """Number of requests the verifier holds."""
        return len(self._open)

    def is_open(self, live: LiveRequest) -> bool:
        """Whether the verifier holds it (as far as the loop knows)."""
        return live.phase in (Phase.PREFILLING, Phase.DECODING)

    def service_stats(self) -> ServiceStats:
        """How all requests are served now."""
        now_s = self._clock.now()
        late_s = [seconds for live in self._requests.values() if (seconds := live.late_s(now_s)) > 0.0]
        tiers = Counter(live.request.service.tier for live in self._requests.values())
        return ServiceStats(tiers, len(late_s), max(late_s, default=0.0))

    def add(self, live: LiveRequest) -> None:
        """Take on a request that is new here."""
        self._requests[live.request_id] = live
        self.waiting.put(live)
        if self._store is not None:
            # The epoch it will be opened with first; later commits may carry higher ones.
            self._store.create(live.request, live.epoch + 1, live.output)

    def move_to_open(self) -> LiveRequest:
        """Take the head of the queue; the caller opens it at the verifier."""
        live = self.waiting.pop()
        if live.opened_s is None:
            live.opened_s = self._clock.now()
        self._open[live.request_id] = live
        self._drafts.keep(live.request_id)
        return live

    def requeue(self, live: LiveRequest) -> None:
        """Free what an open request holds and let it wait, with all its tokens, to be opened anew."""
        self._let_go(live)
        self.waiting.put(live)

    def preempt(self) -> None:
        """Have one open request give way: of the lowest standing the youngest."""
        last = max(self._open.values(), key=_order_of_giving_way)
        last.num_times_given_way += 1
        self.requeue(last)
        self.is_short_of_pages = True

    def commit(self, live: LiveRequest, delta: TokenDelta) -> None:
        """Append tokens to the output, record them and hand them out; ends the request where they do."""
        live.commit(delta.token_ids, self._clock.now())
        if self._store is not None and delta.token_ids:
            self._store.commit(live.request_id, live.epoch, delta.start, delta.token_ids)
        if delta.finish_reason is not None:
            self._leave(live, delta.finish_reason)
        live.events.put_nowait(delta)

    def fail(self, live: LiveRequest, error: DsparkError) -> None:
        """End a request with an error."""
        self._leave(live, FinishReason.ABORT)
        live.events.put_nowait(error)

    def drop_ended(self) -> None:
        """End the requests whose callers gave up, and leave those that another scheduler owns to it."""
        for live in list(self._requests.values()):
            if live.is_lost:
                self._forget(live)
            elif live.is_cancelled:
                self._leave(live, FinishReason.ABORT)

    def lose(self, live: LiveRequest, error: DsparkError) -> None:
        """End a request that another scheduler has taken over."""
        self._forget(live)
        live.events.put_nowait(error)

    def fail_older_than(self, moment_s: float, error: DsparkError) -> None:
        """End those that arrived before a moment of the clock."""
        for live in [live for live in self._requests.values() if live.arrival_s <= moment_s]:
            self.fail(live, error)

    def is_current(self, live: LiveRequest, outcome: VerifyOutcome) -> bool:
        """Whether an outcome continues exactly the committed tokens."""
        return outcome.epoch == live.epoch and outcome.base_committed_len == live.committed_len

    def _leave(self, live: LiveRequest, reason: FinishReason) -> None:
        if live.phase is Phase.WAITING:
            self.waiting.remove(live)
        else:
            self._let_go(live)
        self._end(live)
        if self._store is not None:
            self._store.finish(live.request_id, live.epoch, reason)

    def _forget(self, live: LiveRequest) -> None:
        """Leave all as it is at verifier, drafter and store: it belongs to the new owner."""
        if live.phase is Phase.WAITING:
            self.waiting.remove(live)
        else:
            del self._open[live.request_id]
            self.is_short_of_pages = False
        self._end(live)

    def _end(self, live: LiveRequest) -> None:
        live.phase = Phase.FINISHED
        del self._requests[live.request_id]
        if live.opened_s is not None:
            self.service_time.observe(self._clock.now() - live.opened_s)

    def _let_go(self, live: LiveRequest) -> None:
        del self._open[live.request_id]
        self._link.release(live.request_id)
        self._drafts.release(live.request_id)
        self.is_short_of_pages = False


def _order_of_giving_way(live: LiveRequest) -> tuple[int, int]:
    return standing(live.request.service.tier, live.num_times_given_way), live.arrival
