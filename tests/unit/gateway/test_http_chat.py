"""POST /v1/chat/completions, as clients and their breakages know it."""

from __future__ import annotations

from typing import Any

import pytest

from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.types import Acceptance, FinishReason, GenerationRequest, TokenDelta
from tests.unit.gateway.gateway_fakes import EOS, FakeBackend, deltas, says
from tests.unit.gateway.http_client import HELLO, ask, content_of, events_of


async def test_a_stream_has_role_content_finish_and_done_in_this_order() -> None:
    events = events_of(await ask(FakeBackend(says("Héllo 🙂")), stream=True))
    deltas_seen = [e["choices"][0]["delta"] for e in events]
    assert deltas_seen[0] == {"role": "assistant", "content": ""}
    assert all(set(d) == {"content"} for d in deltas_seen[1:-1])
    reasons = [e["choices"][0]["finish_reason"] for e in events]
    assert reasons == [None] * (len(events) - 1) + ["stop"]
    assert content_of(events) == "Héllo 🙂"


async def test_every_chunk_of_a_stream_repeats_id_and_model_also_the_one_with_the_usage() -> None:
    response = await ask(FakeBackend(says("Hello")), stream=True, stream_options={"include_usage": True})
    events = events_of(response)
    assert len({(e["id"], e["model"], e["created"], e["object"]) for e in events}) == 1
    assert events[0]["id"].startswith("chatcmpl-")
    assert events[0]["object"] == "chat.completion.chunk"


async def test_without_stream_options_no_chunk_lacks_choices() -> None:
    events = events_of(await ask(FakeBackend(says("Hello")), stream=True))
    assert all(e["choices"] for e in events)
    assert not any("usage" in e for e in events)


async def test_the_usage_comes_once_at_the_end_with_an_empty_list_of_choices() -> None:
    response = await ask(FakeBackend(says("Hello")), stream=True, stream_options={"include_usage": True})
    *others, last = events_of(response)
    assert all(e["usage"] is None and e["choices"] for e in others)
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 20 + 1, "completion_tokens": 6, "total_tokens": 27}


async def test_continuous_usage_counts_up_to_the_total() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = events_of(await ask(FakeBackend(says("Hello", 2, 2)), stream=True, stream_options=options))
    counts = [e["usage"]["completion_tokens"] for e in events]
    # Role; "He", "ll", "o" with the end; the usage chunk.
    assert counts == [0, 2, 4, 6, 6]


async def test_stream_and_whole_response_say_the_same() -> None:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "stop": [" ha ha ha"]}
    text = "one ha ha ha two"
    whole = (await ask(FakeBackend(says(text, 4, 7)), **fields)).json()
    events = events_of(await ask(FakeBackend(says(text, 4, 7)), stream=True, **fields))
    choice = whole["choices"][0]
    assert choice["message"]["content"] == content_of(events) == "one"
    streamed = [
        entry for e in events for entry in (e["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == choice["logprobs"]["content"]
    assert len(streamed) == whole["usage"]["completion_tokens"] == len("one ha ha ha")
    assert choice["finish_reason"] == events[-1]["choices"][0]["finish_reason"] == "stop"
    assert choice["stop_reason"] == " ha ha ha"


async def test_log_probabilities_carry_the_bytes_of_half_characters() -> None:
    response = (await ask(FakeBackend(says("é")), logprobs=True, top_logprobs=1)).json()
    entries = response["choices"][0]["logprobs"]["content"]
    assert bytes(b for e in entries[:2] for b in e["bytes"]).decode() == "é"
    assert [len(e["top_logprobs"]) for e in entries] == [2, 2, 2]  # the fake reports two


async def test_without_logprobs_there_are_none() -> None:
    backend = FakeBackend(says("Hello"))
    assert (await ask(backend)).json()["choices"][0]["logprobs"] is None
    assert backend.requests[0].sampling.num_logprobs is None


async def test_a_stop_found_closes_the_scheduler_stream_before_it_sends_more() -> None:
    backend = FakeBackend(says("one STOP two three four", 1, 1, 1, 1, 5))
    response = (await ask(backend, stop="STOP")).json()
    assert response["choices"][0]["message"]["content"] == "one "
    assert (backend.num_sent, backend.num_open) == (5, 0)


async def test_max_completion_tokens_wins_over_max_tokens() -> None:
    backend = FakeBackend(says("Hello world"))
    response = (await ask(backend, max_tokens=9, max_completion_tokens=3)).json()
    assert backend.requests[0].stop.max_new_tokens == 3
    assert response["choices"][0]["finish_reason"] == "length"
    assert response["usage"]["completion_tokens"] == 3


async def test_by_default_the_output_may_fill_the_context() -> None:
    backend = FakeBackend(says("Hello"))
    await ask(backend)
    request = backend.requests[0]
    assert request.stop.max_new_tokens == 2048 - len(request.prompt_token_ids)


@pytest.mark.parametrize(
    ("fields", "acceptance"),
    [
        ({"temperature": 0}, Acceptance.GREEDY),
        ({"temperature": 0, "seed": 1}, Acceptance.GREEDY),
        ({"seed": -1}, Acceptance.COUPLED),
        ({}, Acceptance.REJECTION),
        ({"temperature": None, "seed": None}, Acceptance.REJECTION),
    ],
)
async def test_temperature_and_seed_choose_how_drafts_are_judged(
    fields: dict[str, Any], acceptance: Acceptance
) -> None:
    backend = FakeBackend(says("Hello"))
    await ask(backend, **fields)
    sampling = backend.requests[0].sampling
    assert sampling.acceptance is acceptance
    assert sampling.temperature == (0 if acceptance is Acceptance.GREEDY else 1)
    if fields.get("seed") is not None:
        assert sampling.seed == fields["seed"] % 2**64


async def test_sampling_fields_reach_the_scheduler() -> None:
    backend = FakeBackend(says("Hello"))
    await ask(backend, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, stop_token_ids=[65])
    sampling, stop = backend.requests[0].sampling, backend.requests[0].stop
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.1)
    assert stop.stop_token_ids == {65, EOS}


async def test_penalties_bias_and_minimum_reach_the_scheduler() -> None:
    backend = FakeBackend(says("Hello"))
    await ask(
        backend,
        repetition_penalty=1.2,
        presence_penalty=-0.5,
        frequency_penalty=2,
        logit_bias={"70": -100, "9": 0.5},
        min_tokens=3,
        stop_token_ids=[65],
        n=2,
    )
    expected = LogitAdjustments(1.2, -0.5, 2.0, ((9, 0.5), (70, -100.0)), 3, (65, EOS))
    assert [request.sampling.adjustments for request in backend.requests] == [expected, expected]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "min_tokens": 0},
        {"repetition_penalty": None, "presence_penalty": None, "logit_bias": None, "min_tokens": None},
        {"logit_bias": {}, "stop_token_ids": [65]},
    ],
)
async def test_neutral_values_leave_the_logits_alone(fields: dict[str, Any]) -> None:
    backend = FakeBackend(says("Hello"))
    assert (await ask(backend, **fields)).status_code == 200
    assert backend.requests[0].sampling.adjustments is None


async def test_the_minimum_holds_for_the_end_of_text_where_that_is_ignored_too() -> None:
    backend = FakeBackend(says("Hello"))
    await ask(backend, min_tokens=2, ignore_eos=True)
    adjustments = backend.requests[0].sampling.adjustments
    assert adjustments is not None
    assert adjustments.ending_token_ids == (EOS,)


async def test_a_stop_string_before_the_minimum_is_text_and_a_later_one_ends_the_answer() -> None:
    backend = FakeBackend(says("a.b.c.d", 1, 1, 1, 1, 1, 1, 1))
    response = (await ask(backend, stop=".", min_tokens=4)).json()
    assert response["choices"][0]["message"]["content"] == "a.b.c"
    assert response["choices"][0]["finish_reason"] == "stop"


async def test_top_k_of_minus_one_is_off() -> None:
    backend = FakeBackend(says("Hello"))
    await ask(backend, top_k=-1)
    assert backend.requests[0].sampling.top_k == 0


async def test_ignore_eos_lets_the_output_run_on() -> None:
    def script(request: GenerationRequest) -> list[TokenDelta]:
        return deltas([65, EOS, 66, 67], [4], finish=FinishReason.LENGTH)

    backend = FakeBackend(script)
    response = (await ask(backend, ignore_eos=True)).json()
    assert backend.requests[0].stop.stop_token_ids == frozenset()
    assert response["choices"][0]["message"]["content"] == "ABC"


async def test_choices_have_seeds_of_their_own_and_the_first_keeps_the_requests() -> None:
    def script(request: GenerationRequest) -> list[TokenDelta]:
        index = int(request.request_id.rsplit("-", 1)[1])
        return deltas([65 + index] * (index + 1) + [EOS], [2, 9], finish=FinishReason.STOP)

    backend = FakeBackend(script)
    events = events_of(await ask(backend, n=3, seed=5, stream=True, stream_options={"include_usage": True}))
    assert [content_of(events, i) for i in range(3)] == ["A", "BB", "CCC"]
    assert events[-1]["usage"]["completion_tokens"] == 2 + 3 + 4
    seeds = [r.sampling.seed for r in sorted(backend.requests, key=lambda r: r.request_id)]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3
    again = FakeBackend(script)
    whole = (await ask(again, n=3, seed=5)).json()
    assert sorted(r.sampling.seed for r in again.requests) == sorted(seeds)
    assert [c["message"]["content"] for c in whole["choices"]] == ["A", "BB", "CCC"]
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2]


async def test_the_metrics_of_a_response_have_vllms_shape() -> None:
    response = (await ask(FakeBackend(says("abcdefg", 1, 4, 3)))).json()
    speculation = response["metrics"]["speculative_decoding"]
    # Rounds of 1, 4 and 3 tokens: 0, 3 and 2 accepted of 1, 4 and 3 verified drafts.
    assert speculation["mean_acceptance_length"] == pytest.approx(1 + 5 / 3)
    assert speculation["draft_acceptance_rate"] == pytest.approx(5 / 8)
    assert speculation["acceptance_histogram"] == [1, 0, 1, 1, 0, 0, 0, 0]
    assert speculation["num_spec_steps"] == 3
    assert speculation["num_accepted_draft_tokens"] == 5
    assert speculation["num_draft_tokens"] == 8
    assert speculation["num_spec_tokens"] == 7
    assert response["metrics"]["time_to_first_token_ms"] > 0
    assert response["usage"].get("completion_tokens_details") is None


async def test_the_metrics_of_a_stream_are_on_the_usage_chunk() -> None:
    events = events_of(
        await ask(FakeBackend(says("abc")), stream=True, stream_options={"include_usage": True})
    )
    assert events[-1]["metrics"]["speculative_decoding"]["num_spec_steps"] == 2
    assert not any("metrics" in e for e in events[:-1])


async def test_round_details_tell_which_text_accepted_drafts_brought() -> None:
    response = await ask(FakeBackend(says("a🙂b", 2, 4, 1)), stream=True, return_round_details=True)
    choices = [e["choices"][0] for e in events_of(response)[1:]]
    assert ["".join(c["dspark"]["tokens"]) for c in choices] == [
        c["delta"].get("content", "") for c in choices
    ]
    assert choices[1]["dspark"] == {
        "num_drafted": 7,
        "num_scheduled": 4,
        "num_accepted": 3,
        "tokens": ["🙂", "b"],
        "accepted": [True, False],
    }


async def test_unknown_and_harmless_fields_are_ignored() -> None:
    message = {"role": "user", "content": "hi", "annotations": [], "refusal": None}
    fields = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "wild": [1]}
    neutral = {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "tools": [{}], "n": None}
    response = await ask(
        FakeBackend(says("ok")), messages=[message], tool_choice="auto",
        response_format={"type": "text"}, parallel_tool_calls=True, **fields, **neutral,
    )  # fmt: skip
    assert response.status_code == 200, response.text


async def test_content_may_be_a_list_of_text_parts() -> None:
    plain, parts = FakeBackend(says("ok")), FakeBackend(says("ok"))
    await ask(plain, messages=HELLO)
    await ask(parts, messages=[{"role": "user", "content": [{"type": "text", "text": c} for c in "hi"]}])
    assert plain.requests[0].prompt_token_ids == parts.requests[0].prompt_token_ids


async def test_an_assistant_turn_without_content_is_allowed() -> None:
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": []}, *HELLO]
    assert (await ask(FakeBackend(says("ok")), messages=messages)).status_code == 200


async def test_a_path_alias_and_no_model_at_all_name_the_served_one() -> None:
    for fields in ({"model": "models/tiny"}, {"model": "tiny"}, {"model": None}, {}):
        response = await ask(FakeBackend(says("ok")), **fields)
        assert response.json()["model"] == "tiny"
