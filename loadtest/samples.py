"""One sample per request, measured by ourselves: Locust's own statistics round times to two digits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from loadtest.sse import DONE


@dataclass(frozen=True, slots=True)
class Sample:
    """One request, from the moment it was sent.

    Attributes:
        kind: class of the prompt.
        sent_s: when, on the clock of the run.
        ttft_s: until the first event with text; the role-only one does not count.
        e2e_s: until the end of the stream.
        num_tokens: tokens of the answer, as the server counts them.
        num_first_tokens: of them, those in the first event with text.
        mean_committed: tokens per round, where the server tells rounds.
        error: what went wrong; empty: nothing.
    """

    kind: str
    sent_s: float
    ttft_s: float = 0.0
    e2e_s: float = 0.0
    num_tokens: int = 0
    num_first_tokens: int = 0
    mean_committed: float | None = None
    error: str = ""

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first event; None when there was no more than that.

        A round may commit several tokens at once, so the gap between events says nothing about a token:
        the time after the first event is divided by the tokens that came after it.
        """
        rest = self.num_tokens - self.num_first_tokens
        return (self.e2e_s - self.ttft_s) / rest if rest > 0 else None


class StreamMeter:
    """Measures one stream of chat completion chunks. Knows no clock: times are given."""

    def __init__(self, kind: str, sent_s: float) -> None:
        self.kind = kind
        self.sent_s = sent_s
        self._first_s: float | None = None
        self._num_first_tokens = 1
        self._num_tokens = 0
        self._num_events = 0
        self._rounds: list[int] = []
        self._finish_reason = ""
        self._is_done = False
        self._error = ""

    def take(self, event: dict[str, Any] | str, now_s: float) -> None:
        """Count one event that arrived at `now_s`."""
        if isinstance(event, str):
            self._is_done = event == DONE
            return
        if "error" in event:
            self._error = str(event["error"].get("message", event["error"]))
        usage = event.get("usage") or {}
        self._num_tokens = usage.get("completion_tokens", self._num_tokens)
        for choice in event.get("choices") or []:
            self._take_choice(choice, now_s)

    def sample(self, now_s: float, error: str = "") -> Sample:
        """The sample of the stream that ended at `now_s`. A stream without its end is an error."""
        error = error or self._error
        if not error and not (self._is_done and self._finish_reason):
            error = "the stream was cut"
        if not error and self._first_s is None:
            error = "no text"
        rounds = self._rounds
        return Sample(
            kind=self.kind,
            sent_s=self.sent_s,
            ttft_s=(now_s if self._first_s is None else self._first_s) - self.sent_s,
            e2e_s=now_s - self.sent_s,
            num_tokens=max(self._num_tokens, self._num_events),
            num_first_tokens=self._num_first_tokens,
            mean_committed=sum(rounds) / len(rounds) + 1 if rounds else None,
            error=error,
        )

    def _take_choice(self, choice: dict[str, Any], now_s: float) -> None:
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        details = choice.get("dspark") or {}
        if details.get("num_drafted"):
            self._rounds.append(int(details.get("num_accepted", 0)))
        if not (choice.get("delta") or {}).get("content"):
            return
        self._num_events += 1
        if self._first_s is None:
            self._first_s = now_s
            # With a running usage it is known how many tokens the first event brought; else one is assumed.
            self._num_first_tokens = max(1, self._num_tokens)


def in_window(samples: Iterable[Sample], warmup_s: float) -> list[Sample]:
    """Samples of requests sent after the warm-up."""
    return [sample for sample in samples if sample.sent_s >= warmup_s]
