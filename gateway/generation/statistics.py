"""Figures of one response: its times and what speculation did for it.

Conventions: the acceptance length counts the bonus token; a "draft" is a round in which at least one
draft token was verified. Times start when the request was read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dspark.decoding.types import RoundStats
from gateway.generation.choice import ChoiceDelta

Clock = Callable[[], float]


class ResponseStatistics:
    """Adds up the deltas of all choices of a response."""

    def __init__(self, clock: Clock, *, start_s: float, prompt_tokens: int, gamma: int) -> None:
        """Begin at zero.

        Args:
            clock: monotonic seconds.
            start_s: when the request was read, by that clock.
            prompt_tokens: tokens of all prompts.
            gamma: draft tokens per block; 0 when there is no drafter.
        """
        self._clock = clock
        self._start_s = start_s
        self._first_s: float | None = None
        self._last_s = start_s
        self._first_delta_tokens = 0
        self._rounds: list[RoundStats] = []
        self._gamma = gamma
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0

    def observe(self, delta: ChoiceDelta) -> None:
        """Count one delta."""
        self._last_s = self._clock()
        self.completion_tokens += len(delta.tokens)
        if self._first_s is None and delta.tokens:
            self._first_s = self._last_s
            self._first_delta_tokens = len(delta.tokens)
        if delta.tokens:
            self._rounds.append(delta.round)

    @property
    def usage(self) -> dict[str, int]:
        """Token counts in OpenAI's shape. Tokens cut off by a stop are not counted."""
        return self.usage_at(self.completion_tokens)

    def usage_at(self, completion_tokens: int) -> dict[str, int]:
        """Token counts when this much of the output had been sent."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self.prompt_tokens + completion_tokens,
        }

    @property
    def first_token_s(self) -> float | None:
        """Seconds to the first token; None before it."""
        return None if self._first_s is None else self._first_s - self._start_s

    @property
    def duration_s(self) -> float:
        """Seconds to the last delta."""
        return self._last_s - self._start_s

    @property
    def per_token_s(self) -> float | None:
        """Seconds per token after the first delta; None when all tokens came in it."""
        later = self.completion_tokens - self._first_delta_tokens
        if self._first_s is None or later == 0:
            return None
        return (self._last_s - self._first_s) / later

    def metrics(self, *, with_rounds: bool = False) -> dict[str, Any]:
        """The `metrics` member of a response, in vLLM's shape.

        Args:
            with_rounds: add accepted and verified drafts round by round.
        """
        return {
            "time_to_first_token_ms": _ms(self.first_token_s),
            "mean_itl_ms": _ms(self.per_token_s),
            "e2e_latency_ms": _ms(self.duration_s),
            "speculative_decoding": self._speculation(with_rounds) if self._gamma else None,
            **({} if self._gamma else {"speculative_decoding_off": "no drafter is connected"}),
        }

    def _speculation(self, with_rounds: bool) -> dict[str, Any]:
        drafts = [r for r in self._rounds if r.num_scheduled > 0]
        accepted = sum(r.num_accepted for r in drafts)
        scheduled = sum(r.num_scheduled for r in drafts)
        figures: dict[str, Any] = {
            "mean_acceptance_length": 1 + accepted / len(drafts) if drafts else None,
            "draft_acceptance_rate": accepted / scheduled if scheduled else None,
            "acceptance_histogram": _histogram(drafts, self._gamma),
            "num_spec_steps": len(drafts),
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": scheduled,
            "num_proposed_draft_tokens": sum(r.num_drafted for r in self._rounds),
            "num_spec_tokens": self._gamma,
            "num_steps": len(self._rounds),
        }
        if with_rounds:
            figures["per_step_accepted"] = [r.num_accepted for r in self._rounds]
            figures["per_step_drafted"] = [r.num_scheduled for r in self._rounds]
        return figures


def _histogram(drafts: Sequence[RoundStats], gamma: int) -> list[int]:
    """Rounds by number of accepted drafts, [gamma + 1]."""
    counts = [0] * (gamma + 1)
    for stats in drafts:
        counts[min(stats.num_accepted, gamma)] += 1
    return counts


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
