"""Answers of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.bodies.common import Envelope, FinishedChoice, round_details
from gateway.bodies.logprobs import chat_logprobs
from gateway.generation.choice import ChoiceDelta, OutputToken
from gateway.text.tokens import TokenTable

_CHUNK = "chat.completion.chunk"


@dataclass(frozen=True, slots=True)
class ChatBody:
    """Writes chat answers."""

    envelope: Envelope
    table: TokenTable
    num_choices: int
    has_logprobs: bool
    has_details: bool

    def opening(self) -> list[dict[str, Any]]:
        """The role of each choice, before any content."""
        delta = {"role": "assistant", "content": ""}
        return [
            self.envelope.wrap(_CHUNK, [_choice(index, {"delta": delta}, None, None)])
            for index in range(self.num_choices)
        ]

    def chunk(self, delta: ChoiceDelta) -> dict[str, Any] | None:
        """The content of one delta."""
        if not (delta.text or delta.finish_reason or self.has_logprobs or self.has_details):
            return None
        content = {"content": delta.text} if delta.text else {}
        choice = _choice(delta.index, {"delta": content}, self._logprobs(delta.tokens), delta.finish_reason)
        if delta.finish_reason:
            choice["stop_reason"] = delta.stop_reason
        if self.has_details:
            choice["dspark"] = round_details(delta)
        return self.envelope.wrap(_CHUNK, [choice])

    def closing(self) -> dict[str, Any]:
        """The chunk without choices that carries the usage."""
        return self.envelope.wrap(_CHUNK, [])

    def whole(self, choices: Sequence[FinishedChoice]) -> dict[str, Any]:
        """The response that is not streamed."""
        return self.envelope.wrap(
            "chat.completion",
            [
                {
                    **_choice(
                        c.index,
                        {"message": {"role": "assistant", "content": c.text, "refusal": None}},
                        self._logprobs(c.tokens),
                        c.finish_reason,
                    ),
                    "stop_reason": c.stop_reason,
                }
                for c in choices
            ],
        )

    def _logprobs(self, tokens: Sequence[OutputToken]) -> dict[str, Any] | None:
        return chat_logprobs(tokens, self.table) if self.has_logprobs else None


def _choice(
    index: int, content: dict[str, Any], logprobs: dict[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish_reason}
