"""What both kinds of answers share: their envelope, and the parts a response is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.generation.choice import ChoiceDelta, OutputToken


@dataclass(frozen=True, slots=True)
class Envelope:
    """Members every chunk of a response repeats.

    Attributes:
        created: seconds since the epoch.
        fingerprint: changes whenever equal requests may be answered differently.
        service_tier: that the request is served in, which is not "auto".
    """

    id: str
    created: int
    model: str
    fingerprint: str
    service_tier: str

    def wrap(self, kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """A chunk or response of this kind."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "service_tier": self.service_tier,
            "choices": choices,
        }


@dataclass(frozen=True, slots=True)
class FinishedChoice:
    """All deltas of one choice, joined."""

    index: int
    text: str
    tokens: tuple[OutputToken, ...]
    finish_reason: str | None
    stop_reason: str | int | None

    @classmethod
    def joined(cls, deltas: Sequence[ChoiceDelta]) -> FinishedChoice:
        """Join the deltas of one choice, in order."""
        last = deltas[-1]
        return cls(
            index=last.index,
            text="".join(d.text for d in deltas),
            tokens=tuple(t for d in deltas for t in d.tokens),
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
        )


class AnswerBody(Protocol):
    """How one kind of answer is written."""

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first token."""
        ...

    def chunk(self, delta: ChoiceDelta) -> dict[str, Any] | None:
        """The chunk of one delta; None when there is nothing to say yet."""
        ...

    def closing(self) -> dict[str, Any]:
        """The chunk without choices that carries the usage."""
        ...

    def whole(self, choices: Sequence[FinishedChoice]) -> dict[str, Any]:
        """The response that is not streamed, less usage and metrics."""
        ...


def round_details(delta: ChoiceDelta) -> dict[str, Any]:
    """The opt-in `dspark` member of a streamed choice: what one round did, and which text drafts brought."""
    return {
        "num_drafted": delta.round.num_drafted,
        "num_scheduled": delta.round.num_scheduled,
        "num_accepted": delta.round.num_accepted,
        "tokens": [s.text for s in delta.segments],
        "accepted": [s.is_accepted for s in delta.segments],
    }
