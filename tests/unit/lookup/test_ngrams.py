"""Where the end of a text stood before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspark.engine.ngrams import LONGEST_MATCH, SIZES, IndexedText, Match

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def indexed(tokens: list[int], start: int = 0) -> IndexedText:
    text = IndexedText(start)
    text.put(start, tokens)
    return text


def searched(tokens: list[int]) -> Match | None:
    """The same by looking through the whole text."""
    for size in SIZES:
        for place in range(len(tokens) - 1, size - 1, -1):
            if tokens[place - size : place] == tokens[len(tokens) - size :]:
                most = min(place, LONGEST_MATCH)
                agreeing = [tokens[place - 1 - back] == tokens[-1 - back] for back in range(most)]
                return Match(place, agreeing.index(False) if False in agreeing else most)
    return None


@given(TEXTS)
def test_the_index_finds_what_a_search_finds(tokens: list[int]) -> None:
    assert indexed(tokens).match() == searched(tokens)


@given(TEXTS, st.integers(1, 5))
def test_a_text_that_comes_in_pieces_is_the_text_at_once(tokens: list[int], size: int) -> None:
    text = IndexedText(7)
    for first in range(0, len(tokens), size):
        text.put(7 + first, tokens[first : first + size])
    assert text.match() == indexed(tokens).match()
    assert (text.start, text.end) == (7, 7 + len(tokens))


@given(TEXTS, st.data())
def test_tokens_that_come_again_change_nothing_and_others_replace_them(tokens, data) -> None:
    text, place = indexed(tokens), data.draw(st.integers(0, len(tokens)))
    text.put(place, tokens[place : place + 3])
    assert text.token_ids == tokens
    other = [9 - token for token in tokens[place:]]
    text.put(place, other)
    assert text.token_ids == tokens[:place] + other
    assert text.match() == searched(tokens[:place] + other)


def test_a_new_token_has_no_match() -> None:
    assert indexed([1, 2, 3]).match() is None
    assert IndexedText(0).match() is None


def test_the_latest_of_two_places_is_taken_and_the_longest_n_gram_wins() -> None:
    assert indexed([1, 5, 1, 6, 1]).match() == Match(3, 1)
    assert indexed([8, 1, 5, 1, 6, 8, 1]).match() == Match(2, 2)


def test_a_copy_goes_on_with_what_it_copied() -> None:
    text = indexed([4, 1, 2, 1, 2])
    match = text.match()
    assert match == Match(3, 2)
    assert text.continuation(match, 5) == [1, 2, 1, 2, 1]
