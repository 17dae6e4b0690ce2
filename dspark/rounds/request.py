"""One request inside the loop, which alone changes it, and the stream its caller reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from dspark.decoding.service import ServiceTier
from dspark.decoding.types import (
    Acceptance,
    DraftBlock,
    DraftRequest,
    FinishReason,
    GenerationRequest,
    OpenRequest,
    StopParams,
    TokenDelta,
)
from dspark.errors import DsparkError
from dspark.scheduling.draft_length import DraftLength
from dspark.scheduling.weights import first_token_late_s, speed_late_s, weight_of


class Phase(Enum):
    """Where a request stands.

    WAITING: holds nothing at the verifier (new, preempted, or to be restored).
    PREFILLING: opened at the verifier; committed tokens remain to be computed.
    DECODING: the verifier holds all of its committed tokens.
    FINISHED: its stream has ended.
    """

    WAITING = auto()
    PREFILLING = auto()
    DECODING = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class LiveRequest:
    """What the loop knows of a request that has not ended."""

    request: GenerationRequest
    # order of arrival
    arrival: int
    # with the output limit cut to the model's context
    stop: StopParams
    # clock time of arrival
    arrival_s: float
    # clock time by which it should have its first token; fixed on arrival, also for when it comes back
    deadline_s: float
    phase: Phase = Phase.WAITING
    # grows each time the verifier has to hold it anew; starts where those of its owner do
    epoch: int = 0
    num_opens: int = 0
    # times it gave way for want of pages
    num_times_given_way: int = 0
    # clock time at which it was opened first
    opened_s: float | None = None
    output: list[int] = field(default_factory=list)
    # clock time of the first tokens committed here, and the length of the output with them: its speed counts
    # from there
    first_token_s: float | None = None
    first_output_len: int = 0
    # committed tokens the verifier has yet to compute, while PREFILLING
    num_to_prefill: int = 0
    is_cancelled: bool = False
    # another scheduler has taken it over
    is_lost: bool = False
    # decode without drafts in the next round: pages are short
    is_plain_once: bool = False
    # rounds in a row without a block although the drafter answered, and how many are borne
    num_rounds_without_block: int = 0
    rounds_before_resync: int = 0
    # where two cohorts are in flight, the one it belongs to; None until it has been given to one
    cohort: int | None = None
    # drafts verified in the last round
    num_verified: int = 0
    draft_length: DraftLength = field(default_factory=DraftLength)
    # whether the drafts of the last round were copied from earlier text
    was_copied: bool = False
    events: asyncio.Queue[TokenDelta | DsparkError] = field(default_factory=asyncio.Queue)
    # whether its tokens may weigh other than 1
    is_weighed: bool = field(init=False)

    def __post_init__(self) -> None:
        """Find out once what every round asks."""
        service = self.request.service
        self.is_weighed = service.tier is not ServiceTier.DEFAULT or service.sla.tokens_per_s is not None

    @property
    def request_id(self) -> str:
        """Its id."""
        return self.request.request_id

    @property
    def committed_len(self) -> int:
        """Tokens of prompt and output."""
        return len(self.request.prompt_token_ids) + len(self.output)

    @property
    def turn(self) -> tuple[float, int]:
        """Its place in the order of service: by deadline, then by arrival."""
        return self.deadline_s, self.arrival

    @property
    def num_remaining(self) -> int:
        """Tokens the output may still grow by."""
        return self.stop.max_new_tokens - len(self.output)

    @property
    def anchor_token(self) -> int:
        """The last committed token."""
        return self.output[-1] if self.output else self.request.prompt_token_ids[-1]

    def commit(self, token_ids: Sequence[int], now_s: float) -> None:
        """Append tokens to the output."""
        self.output.extend(token_ids)
        if self.first_token_s is None and token_ids:
            self.first_token_s, self.first_output_len = now_s, len(self.output)

    def weight(self, now_s: float) -> float:
        """Weight of its tokens in a round that begins now; see `dspark.scheduling.weights`."""
        decoding_s = 0.0 if self.first_token_s is None else now_s - self.first_token_s
        return weight_of(self.request.service, len(self.output) - self.first_output_len, decoding_s)

    def late_s(self, now_s: float) -> float:
        """Seconds by which it is behind what it was promised: its first token, later its speed."""
        sla = self.request.service.sla
        if self.first_token_s is None:
            return first_token_late_s(sla, now_s - self.arrival_s)
        return speed_late_s(sla, len(self.output) - self.first_output_len, now_s - self.first_token_s)

    def open(self) -> OpenRequest:
        """Start a new epoch and say what the verifier must hold."""
        self.epoch += 1
        self.num_opens += 1
        self.phase = Phase.PREFILLING
        self.num_to_prefill = self.committed_len
        self.num_rounds_without_block = 0
        self.num_verified = 0
        self.cohort = None
        token_ids = (*self.request.prompt_token_ids, *self.output)
        prompt_len = len(self.request.prompt_token_ids)
        return OpenRequest(self.request_id, self.epoch, token_ids, prompt_len, self.request.sampling)

    def ask_for_block(self, num_drafts: int, gamma: int) -> DraftRequest | None:
        """What to ask of the drafter; None where only the bonus token has room.

        Args:
            num_drafts: those worth their time.
            gamma: most drafts of a block.
        """
        room = self.num_remaining - 1
        max_drafts = min(num_drafts, room)
        if max_drafts < 1 or self.is_plain_once:
            return None
        return DraftRequest(
            self.request_id,
            self.epoch,
            self.committed_len,
            self.anchor_token,
            self.request.sampling,
            max_drafts,
            self.num_verified,
            min(gamma, room),
        )

    def can_use(self, block: DraftBlock) -> bool:
        """Whether a block continues exactly the committed tokens and holds all that verifying it takes.

        An empty one does: the drafter is there and has nothing to propose.
        """
        num_drafts = len(block.token_ids)
        needs_probs = self.request.sampling.acceptance is Acceptance.REJECTION
        return (
            block.epoch == self.epoch
            and block.base_committed_len == self.committed_len
            and num_drafts == len(block.confidence)
            and (not needs_probs or len(block.probs) == num_drafts)
        )


class RequestStream:
    """The caller's end of a request: iterate for deltas, close to give the request up."""

    def __init__(self, live: LiveRequest, cancel: Callable[[LiveRequest], None]) -> None:
        self._live = live
        self._cancel = cancel
        self._has_ended = False

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> TokenDelta:
        """Next delta.

        Raises:
            DsparkError: why the request could not be completed.
        """
        if self._has_ended:
            raise StopAsyncIteration
        event = await self._live.events.get()
        if isinstance(event, DsparkError):
            self._has_ended = True
            raise event
        self._has_ended = event.finish_reason is not None
        return event

    async def aclose(self) -> None:
        """Give the request up; frees its pages within a round. Does nothing after its end."""
        if not self._has_ended:
            self._has_ended = True
            self._cancel(self._live)

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def cancelled_delta(live: LiveRequest) -> TokenDelta:
    """The end of a stream whose caller gave up."""
    return TokenDelta(live.request_id, len(live.output), (), finish_reason=FinishReason.ABORT)
