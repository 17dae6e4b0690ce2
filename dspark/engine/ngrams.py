"""The committed text of one request, and where its last tokens stood before. Knows no drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Lengths of the n-grams that are indexed, longest first; each costs one entry per committed token.
SIZES = (8, 4, 2, 1)
# Most tokens of a match that are compared.
LONGEST_MATCH = 16


@dataclass(frozen=True, slots=True)
class Match:
    """An earlier place where the text went as it ends now.

    Attributes:
        place: of the token that followed there, in the tokens that are held.
        length: tokens that agree, 1 to LONGEST_MATCH.
    """

    place: int
    length: int


class IndexedText:
    """Consecutive tokens of a request with an index of their n-grams; a token costs O(1).

    Attributes:
        start: absolute position of the first token held.
        token_ids: from there on.
    """

    def __init__(self, start: int) -> None:
        self.start = start
        self.token_ids: list[int] = []
        # by n-gram, the place of the token that followed it last
        self._followers: dict[tuple[int, ...], int] = {}

    @property
    def end(self) -> int:
        """Absolute position after the last token held."""
        return self.start + len(self.token_ids)

    def put(self, position: int, token_ids: Sequence[int]) -> None:
        """Hold tokens from an absolute position on; what is held there already stays if it is the same.

        Args:
            position: between `start` and `end`.
            token_ids: from there on.
        """
        place = position - self.start
        assert 0 <= place <= len(self.token_ids), (position, self.start, self.end)
        held = self.token_ids[place : place + len(token_ids)]
        if held != list(token_ids[: len(held)]):
            kept, self.token_ids, self._followers = self.token_ids[:place], [], {}
            self._append(kept)
            held = []
        self._append(token_ids[len(held) :])

    def match(self) -> Match | None:
        """The last earlier place where the longest n-gram that ends the text stood; None: it is new."""
        text = self.token_ids
        for size in SIZES:
            place = self._followers.get(tuple(text[-size:])) if size <= len(text) else None
            if place is not None:
                return Match(place, self._agreeing(place, size))
        return None

    def continuation(self, match: Match, count: int) -> list[int]:
        """What followed at the match; a copy that reaches the end goes on with what it copied."""
        tokens = self.token_ids[match.place : match.place + count]
        while len(tokens) < count:
            tokens.append(tokens[len(tokens) - (len(self.token_ids) - match.place)])
        return tokens

    def _append(self, token_ids: Sequence[int]) -> None:
        text, followers = self.token_ids, self._followers
        for token_id in token_ids:
            place = len(text)
            for size in SIZES:
                if size <= place:
                    followers[tuple(text[place - size :])] = place
            text.append(token_id)

    def _agreeing(self, place: int, known: int) -> int:
        """Tokens before `place` that are those before the end; the last `known` of them are."""
        text = self.token_ids
        most = min(place, LONGEST_MATCH)
        length = known
        while length < most and text[place - 1 - length] == text[-1 - length]:
            length += 1
        return length
