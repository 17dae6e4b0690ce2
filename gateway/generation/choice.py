"""Assembles the tokens of one choice into text, finish reason and log-probabilities.

One state machine for streams and whole responses. It takes tokens one by one, whatever runs they were
accepted in, so how a block was verified can show in no output but the round statistics.
"""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass

from dspark.decoding.types import FinishReason, RoundStats, TokenDelta, TokenLogprobs
from dspark.errors import EngineError, ServiceUnavailableError
from gateway.generation.plan import ChoicePlan
from gateway.text.stops import StopMatcher
from gateway.text.tokens import TokenTable


@dataclass(frozen=True, slots=True)
class OutputToken:
    """One token of the output.

    Attributes:
        text_offset: characters of output (and echo) before the text this token completes.
        logprobs: under the target; None when they were not asked for.
    """

    token_id: int
    text_offset: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of released text and whether an accepted draft brought it."""

    text: str
    is_accepted: bool


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What one round added to a choice.

    Attributes:
        text: released text; may lag behind the tokens while a character or a possible stop is incomplete.
        segments: the same text by token; joined they are `text`.
        finish_reason: "stop" or "length" on the last delta.
        stop_reason: the stop string or token that ended the choice.
    """

    index: int
    text: str
    tokens: tuple[OutputToken, ...]
    round: RoundStats
    segments: tuple[Segment, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class ChoiceAssembler:
    """The state of one choice: tokens in, text out, until something ends it."""

    def __init__(self, plan: ChoicePlan, table: TokenTable) -> None:
        self._plan = plan
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matcher = StopMatcher(plan.stop_strings, keep_match=plan.include_stop)
        self._unreleased: deque[Segment] = deque()
        self._num_tokens = 0
        self._num_chars = len(plan.echo)
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None

    def push(self, delta: TokenDelta) -> ChoiceDelta:
        """Take the tokens of one round, up to the one that ends the choice.

        Raises:
            EngineError: the delta does not continue the output.
            ServiceUnavailableError: the scheduler gave the request up.
        """
        assert self.finish_reason is None, "a finished choice takes no more tokens"
        if delta.start != self._num_tokens:
            raise EngineError(
                f"The scheduler sent output token {delta.start} where token {self._num_tokens} was due."
            )
        text: list[str] = []
        tokens: list[OutputToken] = []
        for k, token_id in enumerate(delta.token_ids):
            logprobs = delta.logprobs[k] if delta.logprobs else None
            tokens.append(OutputToken(token_id, self._num_chars, logprobs))
            text.append(self._take(token_id, is_accepted=k < delta.round.num_accepted))
            if self.finish_reason is not None:
                break
        if self.finish_reason is None and delta.finish_reason is not None:
            text.append(self._end_by(delta.finish_reason))
        shown = "".join(text)
        return ChoiceDelta(
            index=self._plan.index,
            text=shown,
            tokens=tuple(tokens),
            round=delta.round,
            segments=self._segments_of(len(shown)),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def _take(self, token_id: int, *, is_accepted: bool) -> str:
        """Add one token; a stop token adds no text unless stops are to be shown."""
        self._num_tokens += 1
        stop = self._plan.request.stop
        ends_by_token = token_id in stop.stop_token_ids
        text = ""
        if not ends_by_token or self._plan.include_stop:
            text = self._release(self._decoder.decode(self._table.text_bytes(token_id)), is_accepted)
        if self.finish_reason is not None:
            return text
        if ends_by_token:
            return text + self._end("stop", token_id)
        if self._num_tokens >= stop.max_new_tokens:
            return text + self._end("length")
        return text

    def _release(self, piece: str, is_accepted: bool) -> str:
        self._num_chars += len(piece)
        if piece:
            self._unreleased.append(Segment(piece, is_accepted))
        scan = self._matcher.push(piece, may_end=self._num_tokens > self._plan.min_tokens)
        if scan.matched is not None:
            self.finish_reason, self.stop_reason = "stop", scan.matched
        return scan.text

    def _end(self, reason: str, stop_reason: int | None = None) -> str:
        """End the choice; what was held back for a stop that never came is text after all."""
        self.finish_reason, self.stop_reason = reason, stop_reason
        rest = self._decoder.decode(b"", final=True)
        if rest:
            self._unreleased.append(Segment(rest, False))
        return self._matcher.flush() + rest

    def _end_by(self, reason: FinishReason) -> str:
        if reason is FinishReason.ABORT:
            raise ServiceUnavailableError("The scheduler gave this request up; send it again.")
        return self._end(reason.value)

    def _segments_of(self, num_chars: int) -> tuple[Segment, ...]:
        """Cut the next `num_chars` characters out of the unreleased pieces."""
        cut: list[Segment] = []
        while num_chars > 0:
            piece = self._unreleased.popleft()
            if len(piece.text) > num_chars:
                self._unreleased.appendleft(Segment(piece.text[num_chars:], piece.is_accepted))
                piece = Segment(piece.text[:num_chars], piece.is_accepted)
            num_chars -= len(piece.text)
            cut.append(piece)
        return tuple(cut)
