"""How an answer looks in the terminal: accepted drafts green and underlined, then one line of figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from dspark.cli.chat_client import ChatDelta, Piece

_ACCEPTED = "\x1b[32;4m"
_DIM = "\x1b[2m"
_RESET = "\x1b[0m"


def wants_colour(stream: TextIO, env: Mapping[str, str]) -> bool:
    """Whether colours may be used: a terminal, and nobody said no (no-color.org)."""
    return stream.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"


def paint(piece: Piece, *, colour: bool) -> str:
    """The text of one token as it is shown."""
    if not colour or not piece.is_accepted:
        return piece.text
    # Styles end before a line break, else some terminals underline to the edge of the window.
    return "\n".join(f"{_ACCEPTED}{part}{_RESET}" if part else "" for part in piece.text.split("\n"))


@dataclass(slots=True)
class Tally:
    """Figures of one answer, added up while it streams."""

    num_tokens: int = 0
    num_rounds: int = 0
    num_accepted: int = 0

    def add(self, delta: ChatDelta) -> None:
        """Count one round."""
        if delta.num_tokens is not None:
            self.num_tokens = delta.num_tokens
        if delta.num_drafted:
            self.num_rounds += 1
            self.num_accepted += delta.num_accepted

    def sentence(self, first_token_s: float, last_token_s: float) -> str:
        """The last line; speed counts from the first token on, as the wait for it is told apart.

        Args:
            first_token_s: seconds from the question to the first text.
            last_token_s: seconds from the question to the last text.
        """
        parts = [f"{self.num_tokens} tokens"]
        decoding_s = last_token_s - first_token_s
        if self.num_tokens > 1 and decoding_s > 0:
            parts.append(f"{(self.num_tokens - 1) / decoding_s:.1f} tok/s")
        parts.append(f"first after {first_token_s:.2f} s")
        if self.num_rounds:
            mean_committed = self.num_accepted / self.num_rounds + 1
            parts.append(f"{mean_committed:.2f} committed per drafted round")
        else:
            parts.append("no drafts")
        return " · ".join(parts)


def dim(text: str, *, colour: bool) -> str:
    """Text that should not compete with the answer."""
    return f"{_DIM}{text}{_RESET}" if colour else text
