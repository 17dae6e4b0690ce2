"""Figures of a response, on a clock that the test moves."""

from __future__ import annotations

import pytest

from dspark.decoding.types import RoundStats
from gateway.generation.choice import ChoiceDelta, OutputToken
from gateway.generation.statistics import ResponseStatistics


def delta(num_tokens: int, *, drafted: int = 0, scheduled: int = 0, accepted: int = 0) -> ChoiceDelta:
    tokens = tuple(OutputToken(65, 0) for _ in range(num_tokens))
    return ChoiceDelta(0, "A" * num_tokens, tokens, RoundStats(drafted, scheduled, accepted))


def observed(*events: tuple[float, ChoiceDelta], gamma: int = 3) -> ResponseStatistics:
    times = iter([time for time, _ in events])
    statistics = ResponseStatistics(lambda: next(times), start_s=10.0, prompt_tokens=5, gamma=gamma)
    for _, piece in events:
        statistics.observe(piece)
    return statistics


def test_rounds_without_drafts_count_as_steps_but_not_as_drafts() -> None:
    statistics = observed(
        (11.0, delta(1)),
        (12.0, delta(3, drafted=3, scheduled=2, accepted=2)),
        (13.0, delta(1, drafted=3)),
        (14.0, delta(1, drafted=3, scheduled=3)),
    )
    figures = statistics.metrics(with_rounds=True)["speculative_decoding"]
    assert figures["num_spec_steps"] == 2
    assert figures["num_steps"] == 4
    assert figures["mean_acceptance_length"] == 2.0
    assert figures["draft_acceptance_rate"] == pytest.approx(2 / 5)
    assert figures["acceptance_histogram"] == [1, 0, 1, 0]
    assert figures["num_proposed_draft_tokens"] == 9
    assert figures["per_step_accepted"] == [0, 2, 0, 0]
    assert figures["per_step_drafted"] == [0, 2, 0, 3]


def test_time_per_token_leaves_out_the_tokens_of_the_first_delta() -> None:
    statistics = observed((12.0, delta(4)), (13.0, delta(4)), (14.0, delta(4)))
    assert statistics.first_token_s == 2.0
    assert statistics.per_token_s == 0.25
    assert statistics.duration_s == 4.0
    assert statistics.usage == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}


def test_an_answer_of_one_delta_has_no_time_per_token() -> None:
    assert observed((12.0, delta(4))).per_token_s is None


def test_without_any_draft_the_acceptance_is_unknown_not_zero() -> None:
    figures = observed((11.0, delta(1))).metrics()["speculative_decoding"]
    assert (figures["mean_acceptance_length"], figures["draft_acceptance_rate"]) == (None, None)


def test_without_a_drafter_the_metrics_say_so() -> None:
    metrics = observed((11.0, delta(1)), gamma=0).metrics()
    assert metrics["speculative_decoding"] is None
    assert "no drafter" in metrics["speculative_decoding_off"]
