"""However a block was accepted, the client sees the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.decoding.types import FinishReason, GenerationRequest, SamplingParams, StopParams, TokenDelta
from dspark.errors import EngineError, ServiceUnavailableError
from gateway.generation.choice import ChoiceAssembler, ChoiceDelta
from gateway.generation.plan import ChoicePlan
from gateway.text.tokens import TokenTable
from tests.unit.gateway.gateway_fakes import EOS, byte_tokenizer, deltas

TABLE = TokenTable(byte_tokenizer())
WORDS = ["a", "é", "🙂", "日本", "STOP", "S", "TO", "\n", " ", "ST", "OP"]


def plan_of(
    stops: Sequence[str] = (),
    *,
    cap: int = 10_000,
    include_stop: bool = False,
    stop_ids: Sequence[int] = (EOS,),
) -> ChoicePlan:
    stop = StopParams(max_new_tokens=cap, stop_token_ids=frozenset(stop_ids))
    request = GenerationRequest("r", (1,), SamplingParams(num_logprobs=1), stop)
    return ChoicePlan(0, request, tuple(stops), include_stop)


def assemble(plan: ChoicePlan, script: Sequence[TokenDelta]) -> list[ChoiceDelta]:
    assembler = ChoiceAssembler(plan, TABLE)
    result = []
    for delta in script:
        result.append(assembler.push(delta))
        if assembler.finish_reason is not None:
            break
    return result


def seen(pieces: Sequence[ChoiceDelta]) -> tuple[object, ...]:
    """All that a client can see of a choice, however it was delivered."""
    last = pieces[-1]
    tokens = tuple(t for p in pieces for t in p.tokens)
    return "".join(p.text for p in pieces), tokens, last.finish_reason, last.stop_reason


def text_of(pieces: Sequence[ChoiceDelta]) -> str:
    return "".join(p.text for p in pieces)


@st.composite
def token_lists(draw: st.DrawFn) -> list[int]:
    parts = draw(
        st.lists(
            st.one_of(
                st.sampled_from(WORDS).map(lambda w: [*w.encode()]),
                st.sampled_from([[EOS], [256], [258], [0xF0], [0x9F, 0x99], [0xFF]]),
            ),
            min_size=1,
            max_size=24,
        )
    )
    return [token for part in parts for token in part]


@settings(max_examples=400, deadline=None)
@given(
    ids=token_lists(),
    runs=st.lists(st.integers(1, 8), min_size=1, max_size=100),
    stops=st.lists(st.sampled_from(["STOP", "TO", "🙂", "本", "S\n", "é a", "OP"]), max_size=3),
    cap=st.integers(1, 60),
    include_stop=st.booleans(),
)
def test_any_partition_into_accept_runs_is_seen_alike(
    ids: list[int], runs: list[int], stops: list[str], cap: int, include_stop: bool
) -> None:
    plan = plan_of(stops, cap=cap, include_stop=include_stop)
    runs = [*runs, *[1] * len(ids)]
    one_by_one = assemble(plan, deltas(ids, [1] * len(ids), with_logprobs=True))
    in_runs = assemble(plan, deltas(ids, runs, with_logprobs=True))
    at_once = assemble(plan, deltas(ids, [len(ids)], with_logprobs=True))
    assert seen(one_by_one) == seen(in_runs) == seen(at_once)
    for piece in in_runs:
        assert "".join(s.text for s in piece.segments) == piece.text


@settings(max_examples=200, deadline=None)
@given(ids=token_lists(), runs=st.lists(st.integers(1, 8), min_size=1, max_size=100))
def test_without_stops_the_text_is_what_the_tokenizer_decodes(ids: list[int], runs: list[int]) -> None:
    pieces = assemble(plan_of(stop_ids=()), deltas(ids, [*runs, *[1] * len(ids)]))
    assert text_of(pieces) == byte_tokenizer().decode(ids, skip_special_tokens=True)


@settings(max_examples=200, deadline=None)
@given(ids=token_lists(), stops=st.lists(st.sampled_from(["STOP", "TO", "🙂", "S"]), min_size=1, max_size=3))
def test_a_stop_string_ends_the_text_where_a_reader_of_single_characters_would_stop(
    ids: list[int], stops: list[str]
) -> None:
    ids = [i for i in ids if i != EOS]
    if not ids:
        return
    whole = byte_tokenizer().decode(ids, skip_special_tokens=True)
    expected = whole
    for end in range(len(whole) + 1):
        ending = [s for s in stops if whole[:end].endswith(s)]
        if ending:
            expected = whole[: end - max(map(len, ending))]
            break
    pieces = assemble(plan_of(stops), deltas(ids, [4] * len(ids)))
    assert text_of(pieces) == expected
    assert pieces[-1].finish_reason == ("length" if expected == whole else "stop")


def test_a_character_is_never_split_across_deltas() -> None:
    pieces = assemble(plan_of(), deltas([*"a🙂b".encode()], [2, 1, 1, 2]))
    assert [p.text for p in pieces] == ["a", "", "", "🙂b"]


def test_half_a_character_at_the_end_is_shown_as_a_replacement() -> None:
    pieces = assemble(plan_of(cap=3), deltas([97, 0xF0, 0x9F, 0x99], [4]))
    assert seen(pieces)[0] == "a\ufffd"


def test_a_stop_token_inside_an_accepted_block_ends_exactly_there() -> None:
    pieces = assemble(plan_of(), deltas([10, 11, EOS, 20, 21, 22], [6]))
    assert [t.token_id for t in pieces[0].tokens] == [10, 11, EOS]
    assert (pieces[0].finish_reason, pieces[0].stop_reason) == ("stop", EOS)


def test_a_stop_before_the_cap_wins_and_a_stop_beyond_it_does_not() -> None:
    early = assemble(plan_of(cap=5), deltas([10, 11, EOS, 20, 21, 22], [6]))
    late = assemble(plan_of(cap=2), deltas([10, 11, EOS, 20, 21, 22], [6]))
    assert (early[0].finish_reason, len(early[0].tokens)) == ("stop", 3)
    assert (late[0].finish_reason, len(late[0].tokens)) == ("length", 2)


def test_the_stop_string_is_cut_but_its_last_token_is_counted_and_has_log_probabilities() -> None:
    ids = [*b"one ha ha ha two"]
    pieces = assemble(plan_of([" ha ha ha"]), deltas(ids, [16], with_logprobs=True))
    text, tokens, reason, matched = seen(pieces)
    assert (text, reason, matched) == ("one", "stop", " ha ha ha")
    assert len(tokens) == len("one ha ha ha")
    assert all(t.logprobs is not None for t in tokens)


def test_a_possible_stop_is_held_back_and_released_when_it_does_not_come() -> None:
    held = assemble(plan_of(["DEFGHIJ"]), deltas([*b"ABCDEFGHIK"], [3, 3, 3, 1]))
    assert [p.text for p in held] == ["ABC", "", "", "DEFGHIK"]
    cut = assemble(plan_of(["DEFGHIJ"]), deltas([*b"ABCDEFGHIJK"], [3, 3, 3, 2]))
    assert [p.text for p in cut] == ["ABC", "", "", ""]


def test_held_text_is_flushed_when_the_output_ends() -> None:
    pieces = assemble(plan_of(["DEFG"]), deltas([*b"ABCDE"], [2, 3], finish=FinishReason.LENGTH))
    assert [p.text for p in pieces] == ["AB", "CDE"]


def test_an_asked_for_stop_string_is_kept_to_its_last_character() -> None:
    pieces = assemble(plan_of(["END"], include_stop=True), deltas([*b"theENDmore"], [10]))
    assert text_of(pieces) == "theEND"


def test_segments_say_which_text_accepted_drafts_brought() -> None:
    pieces = assemble(plan_of(["xyz"]), deltas([*b"abxc"], [3, 1]))
    assert [(s.text, s.is_accepted) for s in pieces[0].segments] == [("a", True), ("b", True)]
    assert [(s.text, s.is_accepted) for s in pieces[1].segments] == [("x", False), ("c", False)]


def test_special_tokens_add_no_text_but_ordinary_added_tokens_do() -> None:
    pieces = assemble(plan_of(), deltas([97, 256, 258], [3]))
    assert text_of(pieces) == "athen"


def test_a_gap_in_the_scheduler_stream_is_an_error_not_a_lost_token() -> None:
    assembler = ChoiceAssembler(plan_of(), TABLE)
    with pytest.raises(EngineError, match="token 3 where token 0 was due"):
        assembler.push(TokenDelta("r", 3, (97,)))


def test_a_request_given_up_by_the_scheduler_is_an_error_not_a_finish_reason() -> None:
    with pytest.raises(ServiceUnavailableError, match="send it again"):
        ChoiceAssembler(plan_of(), TABLE).push(TokenDelta("r", 0, (), finish_reason=FinishReason.ABORT))
