"""Figures of rounds, by hand; and thresholds on them."""

import numpy as np
import pytest

from dspark.evaluation.offline.accepted import count_accepted
from dspark.evaluation.offline.results import Pass, PassKind
from dspark.evaluation.offline.sweep import SweepMethod, cut_rounds, rounds_by_threshold, walk
from tests.unit.evaluation.rounds_of_blocks import full_pass, results, rounds

SURE = [4.0, 4.0, 4.0, 4.0]


def test_lengths_are_over_rounds_and_count_the_bonus_token():
    one = count_accepted(rounds((0, 1, 4, 4, 5), (0, 6, 4, 0, 1), (1, 1, 4, 1, 2)), 4, 100)
    assert one.num_rounds == 3
    assert one.accept_len == pytest.approx(8 / 3)
    assert one.mean_accepted == pytest.approx(5 / 3)
    assert one.mean_proposed == 4.0
    assert one.verify_rate == pytest.approx(8 / 15)


def test_a_text_that_ends_inside_its_drafts_has_no_bonus_token_and_proposed_none_behind():
    one = count_accepted(rounds((0, 1, 4, 2, 2)), 4, 100)
    assert one.accept_len == 2.0
    assert one.mean_proposed == 2.0
    assert one.accept_rate == (1.0, 1.0, None, None)
    assert one.conditional == (1.0, 1.0, None, None)


def test_an_end_of_text_as_the_bonus_token_is_a_bonus_token():
    one = count_accepted(rounds((0, 1, 4, 2, 3)), 4, 100)
    assert one.accept_len == 3.0
    assert one.conditional == (1.0, 1.0, 0.0, None)


def test_a_round_that_runs_over_the_limit_counts_whole_in_one_figure_and_in_part_in_the_other():
    one = count_accepted(rounds((0, 1, 4, 4, 5), (0, 6, 4, 3, 4), (0, 7, 4, 0, 1)), 4, 7)
    assert one.accept_len == pytest.approx(10 / 3)
    assert one.mean_committed == pytest.approx(6 / 2), "5 and 1 of 4; the third lies behind the limit"


def test_conditional_acceptance_is_exact_with_cut_blocks_and_differs_from_survival():
    one = count_accepted(rounds((0, 1, 4, 4, 5), (0, 6, 4, 0, 1), (0, 7, 2, 2, 3), (0, 9, 4, 1, 2)), 4, 100)
    assert one.accept_rate == pytest.approx((3 / 4, 2 / 4, 1 / 3, 1 / 3))
    assert one.conditional == pytest.approx((3 / 4, 2 / 3, 1.0, 1.0))
    assert one.num_judged == (4, 3, 1, 1)


def test_no_rounds_give_zeros():
    one = count_accepted(rounds(), 4, 100)
    assert (one.num_rounds, one.accept_len, one.mean_committed, one.verify_rate) == (0, 0.0, 0.0, 0.0)
    assert one.conditional == (None,) * 4


def test_a_block_is_cut_at_its_first_low_confidence_whatever_follows():
    logits = [[2.0, -2.0, 4.0, 4.0], SURE]
    cut = cut_rounds(rounds((0, 1, 4, 3, 4), (0, 5, 4, 3, 4), logits=logits), 0.5)
    assert cut.scheduled.tolist() == [1, 4]
    assert cut.accepted.tolist() == [1, 3]
    assert cut.committed.tolist() == [2, 4]


def test_an_end_of_text_behind_the_cut_is_not_reached():
    logits = [[2.0, -2.0, 4.0, 4.0], SURE]
    cut = cut_rounds(rounds((0, 1, 4, 3, 3), (0, 1, 4, 3, 3), logits=logits), 0.5)
    assert cut.committed.tolist() == [2, 3]
    assert cut.ended_inside.tolist() == [False, True]


def test_drafts_that_were_not_made_are_never_verified():
    cut = cut_rounds(rounds((0, 1, 2, 1, 2), logits=[[4.0, 4.0, np.nan, np.nan]]), 0.0)
    assert cut.scheduled.tolist() == [2]


def test_a_walk_visits_the_positions_that_a_run_would_stop_at():
    # Of a text of 8 tokens the draft accepts (2, 1, 0, 1, 0, ...) at position 1, 2, ...
    rows = [(0, start, 4, accepted, accepted + 1) for start, accepted in enumerate((2, 1, 0, 1, 0, 0, 0), 1)]
    other = [(1, 1, 4, 4, 5), (1, 6, 4, 0, 1)]
    logits = [[4.0, -1.0, 4.0, 4.0]] * 7 + [SURE] * 2
    dense = rounds(*rows, *other, logits=logits)
    assert walk(dense, 0.0).start.tolist() == [1, 4, 6, 7, 1, 6]
    # One draft of each block is verified: 1 -> 3 -> 4 -> 6 -> 7.
    assert walk(dense, 0.5).start.tolist() == [1, 3, 4, 6, 7, 1, 6]


def test_the_most_exact_rounds_at_hand_make_the_sweep():
    own = rounds((0, 1, 4, 2, 3), logits=[SURE])
    run = Pass(PassKind.THRESHOLD, 0.0, rounds((0, 1, 1, 1, 2)), 0.3)
    dense = Pass(PassKind.DENSE, 0.0, own)
    for passes, method, levels in (
        ([full_pass(own), dense, run], SweepMethod.RUN, [0.3]),
        ([full_pass(own), dense], SweepMethod.WALKED, [0.0, 0.5]),
        ([full_pass(own)], SweepMethod.REPLAYED, [0.0, 0.5]),
    ):
        swept = rounds_by_threshold(results(passes), 0.0, [0.0, 0.5])
        assert [(level, how) for level, how, _ in swept] == [(level, method) for level in levels]
    assert rounds_by_threshold(results([full_pass(own)]), 1.0, [0.0]) == []
