"""Answers of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.bodies.common import Envelope, FinishedChoice, round_details
from gateway.bodies.logprobs import completion_logprobs
from gateway.generation.choice import ChoiceDelta, OutputToken
from gateway.text.tokens import TokenTable

_KIND = "text_completion"


@dataclass(frozen=True, slots=True)
class CompletionBody:
    """Writes text completions.

    Attributes:
        echoes: text before the output of each choice; empty where the prompt is not repeated.
    """

    envelope: Envelope
    table: TokenTable
    echoes: tuple[str, ...]
    has_logprobs: bool
    has_details: bool

    def opening(self) -> list[dict[str, Any]]:
        """The prompts that are to be repeated."""
        return [
            self.envelope.wrap(_KIND, [_choice(index, echo, None, None)])
            for index, echo in enumerate(self.echoes)
            if echo
        ]

    def chunk(self, delta: ChoiceDelta) -> dict[str, Any] | None:
        """The text of one delta."""
        if not (delta.text or delta.finish_reason or self.has_logprobs or self.has_details):
            return None
        choice = _choice(delta.index, delta.text, self._logprobs(delta.tokens), delta.finish_reason)
        if delta.finish_reason:
            choice["stop_reason"] = delta.stop_reason
        if self.has_details:
            choice["dspark"] = round_details(delta)
        return self.envelope.wrap(_KIND, [choice])

    def closing(self) -> dict[str, Any]:
        """The chunk without choices that carries the usage."""
        return self.envelope.wrap(_KIND, [])

    def whole(self, choices: Sequence[FinishedChoice]) -> dict[str, Any]:
        """The response that is not streamed."""
        return self.envelope.wrap(
            _KIND,
            [
                {
                    **_choice(
                        c.index, self.echoes[c.index] + c.text, self._logprobs(c.tokens), c.finish_reason
                    ),
                    "stop_reason": c.stop_reason,
                }
                for c in choices
            ],
        )

    def _logprobs(self, tokens: Sequence[OutputToken]) -> dict[str, Any] | None:
        return completion_logprobs(tokens, self.table) if self.has_logprobs else None


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
