import pytest

from dspark.decoding.types import FinishReason, RoundStats, TokenDelta
from dspark.evaluation.acceptance import (
    accept_len,
    conditional_acceptance,
    mean_accepted,
    mean_committed,
    mean_scheduled,
)
from dspark.evaluation.generation import Generation


def generation(*rounds, reason=FinishReason.LENGTH):
    """An output whose rounds are (scheduled, accepted, committed); the prefill's token comes first."""
    deltas, start = [TokenDelta("r", 0, (9,))], 1
    for scheduled, accepted, committed in rounds:
        stats = RoundStats(4, scheduled, accepted)
        deltas.append(TokenDelta("r", start, tuple(range(committed)), stats))
        start += committed
    last = deltas[-1]
    deltas[-1] = TokenDelta("r", last.start, last.token_ids, last.round, finish_reason=reason)
    return Generation("r", tuple(deltas))


def test_a_generation_knows_its_tokens_rounds_and_end():
    one = generation((4, 2, 3), (0, 0, 1))
    assert one.token_ids == (9, 0, 1, 2, 0)
    assert [len(delta.token_ids) for delta in one.rounds] == [3, 1]
    assert one.finish_reason is FinishReason.LENGTH


def test_an_end_without_tokens_is_no_round():
    one = generation((4, 1, 2))
    end = TokenDelta("r", 3, (), finish_reason=FinishReason.ABORT)
    assert len(Generation("r", (*one.deltas, end)).rounds) == 1


def test_means_are_over_rounds_not_over_outputs():
    outputs = [generation((4, 4, 5)), generation((4, 0, 1), (2, 1, 2), (0, 0, 1))]
    assert mean_committed(outputs) == pytest.approx(9 / 4)
    assert mean_scheduled(outputs) == pytest.approx(10 / 4)


def test_accept_len_counts_the_round_that_runs_over_the_limit_and_none_after_it():
    output = generation((4, 4, 5), (4, 2, 3), (4, 0, 1))
    # The rounds begin at 1, 6 and 9.
    assert accept_len([output], 7) == pytest.approx(8 / 2)
    assert accept_len([output], 10) == pytest.approx(9 / 3)
    assert mean_accepted([output], 7) == pytest.approx(6 / 2)
    assert mean_accepted([output], 10) == pytest.approx(6 / 3)


def test_outputs_that_ended_at_once_have_means_of_zero():
    assert mean_committed([generation()]) == mean_scheduled([generation()]) == 0.0
    assert accept_len([], 5) == mean_accepted([], 5) == 0.0


def test_acceptance_is_conditional_on_all_drafts_before():
    outputs = [generation((4, 4, 5), (4, 0, 1), (4, 1, 2), (2, 2, 3))]
    # Position 1: accepted in 3 of 4; 2: 2 of 3; 3 and 4: judged once, as the last round scheduled only two.
    assert conditional_acceptance(outputs, 4) == pytest.approx([3 / 4, 2 / 3, 1.0, 1.0])


def test_a_text_that_ends_inside_its_drafts_says_nothing_about_those_behind():
    outputs = [generation((4, 2, 2), reason=FinishReason.STOP)]
    assert conditional_acceptance(outputs, 4) == [1.0, 1.0]


def test_positions_never_judged_are_left_out():
    assert conditional_acceptance([generation((1, 0, 1))], 4) == [0.0]
