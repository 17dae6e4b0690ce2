"""What prompt lookup drafts, and for whom."""

from __future__ import annotations

import numpy as np
import pytest
from lookup_steps import ask, committed

from dspark.decoding.types import Acceptance, SamplingParams
from dspark.engine.lookup import Lookup, LookupDraftEngine

TEXT = [1, 2, 3, 4, 5, 9, 1, 2, 3]


def engine_of(*batches, gamma: int = 4, pool_tokens: int = 1000) -> LookupDraftEngine:
    engine = LookupDraftEngine(hidden_size=8, vocab_size=10, gamma=gamma, pool_tokens=pool_tokens)
    for batch in batches:
        engine.push(batch)
    return engine


def drafts(engine: LookupDraftEngine, request) -> list[int]:
    (block,) = engine.draft([request])
    assert len(block.confidence) == len(block.token_ids)
    return block.token_ids.tolist()


def test_what_followed_the_same_words_before_is_drafted() -> None:
    engine = engine_of(committed(TEXT[:-1]))
    assert drafts(engine, ask(TEXT)) == [4, 5, 9, 1]
    assert drafts(engine, ask(TEXT, max_drafts=2)) == [4, 5]


def test_the_text_that_is_committed_is_looked_up_in_the_next_round() -> None:
    engine = engine_of(committed([7, 8, 7]))
    assert drafts(engine, ask([7, 8, 7, 6])) == []
    engine.push(committed([6, 8], start=3))
    assert drafts(engine, ask([7, 8, 7, 6, 8, 7], max_drafts=3)) == [6, 8, 7]


def test_a_request_without_a_match_is_answered_with_an_empty_block() -> None:
    engine = engine_of(committed([1, 2, 3]))
    (block,) = engine.draft([ask([1, 2, 3, 4])])
    assert (block.request_id, block.base_committed_len, len(block.token_ids)) == ("a", 4, 0)


def test_a_request_whose_tokens_are_missing_is_left_out() -> None:
    engine = engine_of(committed(TEXT[:4]))
    assert not engine.is_ready(ask(TEXT))
    assert engine.draft([ask(TEXT), ask(TEXT, name="b")]) == []
    assert engine.is_ready(ask(TEXT[:5]))


def test_an_old_epoch_is_dropped_and_a_newer_one_starts_anew() -> None:
    engine = engine_of(committed(TEXT, epoch=2), committed([5, 5], len(TEXT), epoch=1))
    assert engine.is_ready(ask([*TEXT, 0], epoch=2))
    engine.push(committed([5, 5], epoch=3))
    assert engine.is_ready(ask([5, 5, 5], epoch=3))
    assert not engine.is_ready(ask([*TEXT, 0], epoch=2))


def test_a_text_that_starts_late_is_looked_up_as_far_as_it_is_known() -> None:
    engine = engine_of(committed(TEXT[:-1], start=5))
    assert drafts(engine, ask([*range(20, 25), *TEXT])) == [4, 5, 9, 1]


def test_tokens_of_closed_requests_are_forgotten_and_idle_ones_give_way() -> None:
    engine = engine_of(committed(TEXT, name="old"), committed(TEXT), pool_tokens=len(TEXT) + 2)
    assert not engine.is_ready(ask([*TEXT, 4], name="old"))
    assert engine.is_ready(ask([*TEXT, 4]))
    engine.close(["a", "unknown"])
    assert not engine.is_ready(ask([*TEXT, 4]))
    assert engine._lookup._num_tokens == 0


def test_a_draft_is_a_point_mass_where_rejection_sampling_asks_for_a_distribution() -> None:
    sampling = SamplingParams(acceptance=Acceptance.REJECTION)
    engine = engine_of(committed(TEXT[:-1]))
    (block,) = engine.draft([ask(TEXT, sampling=sampling)])
    assert [one.token_ids.tolist() for one in block.probs] == [[token] for token in block.token_ids]
    assert [one.probs.tolist() for one in block.probs] == [[1.0]] * 4
    (greedy,) = engine.draft([ask(TEXT)])
    assert greedy.probs == ()


def test_copies_are_judged_by_the_text_though_nobody_verified_them() -> None:
    lookup = Lookup(gamma=2, max_tokens=1000)
    text, first = [0, 1, 2] * 2, None
    lookup.push(committed(text[:-1]))
    for _ in range(60):
        copy = lookup.copy_for(ask(text, max_drafts=2))
        assert copy is not None
        first = first or copy
        lookup.push(committed(text[-1:], len(text) - 1))
        text.append(copy.token_ids[0])
    assert first.expected_accepted < 1.0
    assert copy.expected_accepted > 1.7
    assert lookup.errors()["greedy"][0] < 0.2
    assert lookup.errors()["sampling"] == [0.0, 0.0]


def test_the_confidence_of_a_draft_does_not_hang_on_the_drafts() -> None:
    # The same match, followed by other tokens.
    blocks = [
        engine_of(committed([1, 2, *followers, 1])).draft([ask([1, 2, *followers, 1, 2])])[0]
        for followers in ([3, 4, 5, 6], [6, 5, 4, 3])
    ]
    assert blocks[0].token_ids.tolist() != blocks[1].token_ids.tolist()
    np.testing.assert_array_equal(blocks[0].confidence, blocks[1].confidence)


@pytest.mark.parametrize("gamma", [1, 3])
def test_a_block_is_no_longer_than_gamma(gamma: int) -> None:
    engine = engine_of(committed(TEXT[:-1]), gamma=gamma)
    assert engine.info.gamma == gamma
    assert engine.info.target_layer_ids == ()
    assert len(drafts(engine, ask(TEXT, max_drafts=9))) == gamma


def test_drafts_that_hardly_ever_survive_are_left_out() -> None:
    # the token 0 comes again and again, each time with another one behind it
    text = [token for number in range(1, 200) for token in (0, number)]
    engine = LookupDraftEngine(hidden_size=8, vocab_size=300, gamma=8)
    lengths = []
    for length in range(5, len(text), 2):
        engine.push(committed(text[: length - 1]))
        lengths.append(len(drafts(engine, ask(text[:length], max_drafts=8))))
    assert lengths[0] > lengths[-1] == 1
