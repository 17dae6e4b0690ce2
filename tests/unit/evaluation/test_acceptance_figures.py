import pytest

from dspark.decoding.types import FinishReason, RoundStats, TokenDelta
from dspark.evaluation.acceptance import mean_committed
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


def test_outputs_that_ended_at_once_have_means_of_zero():
    assert mean_committed([generation()]) == mean_committed([]) == 0.0
