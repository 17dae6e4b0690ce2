"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from dspark.decoding.types import GenerationRequest, TokenDelta
from tests.unit.gateway.gateway_fakes import FakeBackend, deltas, says
from tests.unit.gateway.http_client import ask, events_of

PATH = "/v1/completions"


async def complete(backend: FakeBackend, **fields: Any) -> dict[str, Any]:
    response = await ask(backend, PATH, **fields)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_prompt_is_a_string_token_ids_or_a_list_of_either() -> None:
    for prompt, expected in (
        ("ab", [(97, 98)]),
        ([97, 98], [(97, 98)]),
        (["a", "b"], [(97,), (98,)]),
        ([[97], [98, 99]], [(97,), (98, 99)]),
        (["a", [98]], [(97,), (98,)]),
    ):
        backend = FakeBackend(says("x"))
        response = await complete(backend, prompt=prompt)
        assert sorted(r.prompt_token_ids for r in backend.requests) == expected
        assert response["usage"]["prompt_tokens"] == sum(map(len, expected))


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt() -> None:
    def script(request: GenerationRequest) -> list[TokenDelta]:
        return deltas([*request.prompt_token_ids, 46], [2])

    response = await complete(FakeBackend(script), prompt=["a", "b"], n=2)
    assert [(c["index"], c["text"]) for c in response["choices"]] == [
        (0, "a."),
        (1, "a."),
        (2, "b."),
        (3, "b."),
    ]
    assert response["usage"] == {"prompt_tokens": 2, "completion_tokens": 8, "total_tokens": 10}


async def test_echo_repeats_the_prompt_before_the_output_streamed_or_not() -> None:
    for prompt in ("hé", [*"hé".encode()]):
        whole = await complete(FakeBackend(says(" you")), prompt=prompt, echo=True)
        assert whole["choices"][0]["text"] == "hé you"
        response = await ask(FakeBackend(says(" you")), PATH, prompt=prompt, echo=True, stream=True)
        events = events_of(response)
        assert "".join(e["choices"][0]["text"] for e in events) == "hé you"
        assert {e["object"] for e in events} == {"text_completion"}


async def test_log_probabilities_are_parallel_arrays_with_the_chosen_token_among_the_top() -> None:
    response = await complete(FakeBackend(says("aéb", 2, 2, 1)), prompt="x", logprobs=1, max_tokens=4)
    logprobs = response["choices"][0]["logprobs"]
    assert [len(v) for v in logprobs.values()] == [4, 4, 4, 4]
    assert logprobs["tokens"] == ["a", "\ufffd", "\ufffd", "b"]
    assert logprobs["text_offset"] == [0, 1, 1, 2]
    assert all(n in top for n, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True))


async def test_a_stream_ends_with_usage_when_asked_for() -> None:
    response = await ask(
        FakeBackend(says("abc")), PATH, prompt="x", stream=True, stream_options={"include_usage": True}
    )
    *others, last = events_of(response)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 4)
    assert all(e["usage"] is None for e in others)
    assert others[0]["id"].startswith("cmpl-")


async def test_a_best_of_that_asks_for_nothing_more_is_accepted() -> None:
    response = await complete(FakeBackend(says("x")), prompt="x", best_of=2, n=2, suffix="")
    assert len(response["choices"]) == 2
