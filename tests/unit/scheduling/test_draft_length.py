"""How many drafts a request asks for."""

from __future__ import annotations

from dspark.scheduling.draft_length import DraftLength


def test_a_new_request_asks_for_whole_blocks():
    assert DraftLength().next(7) == 7


def test_a_request_whose_drafts_are_not_worth_verifying_asks_for_one_less_each_round():
    length, asked = DraftLength(), []
    for _ in range(8):
        asked.append(length.next(7))
        length.learn(asked[-1], 0, 0)
    assert asked == [7, 6, 5, 4, 3, 2, 1, 1]


def test_accepted_blocks_grow_by_two_and_never_beyond_gamma():
    length, asked = DraftLength(), []
    length.learn(1, 0, 0)
    for _ in range(5):
        asked.append(length.next(7))
        length.learn(asked[-1], asked[-1], asked[-1])
    assert asked == [1, 3, 5, 7, 7]


def test_a_block_that_was_scheduled_whole_and_rejected_grows_by_one():
    length = DraftLength()
    length.learn(3, 3, 1)
    assert length.next(7) == 4


def test_a_round_that_used_little_of_a_long_block_shortens_it_by_one():
    length = DraftLength()
    length.learn(7, 2, 2)
    assert length.next(7) == 6


def test_rounds_without_drafts_teach_nothing():
    length = DraftLength()
    length.learn(3, 1, 1)
    length.learn(0, 0, 0)
    assert length.next(7) == 2
