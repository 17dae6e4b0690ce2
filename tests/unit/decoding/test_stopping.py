"""Where an output ends does not depend on how it was cut into rounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspark.decoding.stopping import cut_at_stop
from dspark.decoding.types import FinishReason, StopParams


@given(
    tokens=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 8), min_size=1, max_size=40),
    max_new_tokens=st.integers(1, 40),
    stop_token_ids=st.frozensets(st.integers(0, 30), max_size=3),
)
def test_any_partition_into_rounds_gives_the_same_output_and_reason(
    tokens, cuts, max_new_tokens, stop_token_ids
):
    stop = StopParams(max_new_tokens, stop_token_ids)
    output: list[int] = []
    reason, start, rounds = None, 0, iter(cuts)
    while reason is None and start < len(tokens):
        end = start + next(rounds, 1)
        kept, reason = cut_at_stop(tokens[start:end], len(output), stop)
        assert kept == tuple(tokens[start : start + len(kept)])
        output.extend(kept)
        start = end
    assert (tuple(output), reason) == cut_at_stop(tokens, 0, stop)
    assert len(output) <= max_new_tokens
    assert not stop_token_ids & set(output[:-1])


def test_the_stop_token_belongs_to_the_output_and_wins_over_the_limit():
    stop = StopParams(3, frozenset({9}))
    assert cut_at_stop([1, 2, 9, 4], 0, stop) == ((1, 2, 9), FinishReason.STOP)
    assert cut_at_stop([1, 2, 3, 9], 0, stop) == ((1, 2, 3), FinishReason.LENGTH)
    assert cut_at_stop([1, 2], 0, stop) == ((1, 2), None)
    assert cut_at_stop([5], 3, stop) == ((), FinishReason.LENGTH)
