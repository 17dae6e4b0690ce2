"""Whatever a client sends wrong: OpenAI's error object, a status below 500, and the field by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.gateway.gateway_fakes import FakeBackend, FakeInfo, says
from tests.unit.gateway.http_client import HELLO, ask, client_of

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [*HELLO, {"role": 1, "content": "hi"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"seed": 2**64}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"stop": ""}, "stop[0]"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [259]}, "stop_token_ids"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"logit_bias": {"5": True}}, "logit_bias"),
        ({"logit_bias": {"5": None}}, "logit_bias"),
        ({"logit_bias": {"5": 100.5}}, "logit_bias"),
        ({"logit_bias": {"5": 10**400}}, "logit_bias"),
        ({"logit_bias": {"5": float("nan")}}, "logit_bias"),
        ({"logit_bias": {"259": 1}}, "logit_bias"),
        ({"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"presence_penalty": "1"}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": -1}, "repetition_penalty"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 1.5}, "min_tokens"),
        ({"min_tokens": True}, "min_tokens"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"min_tokens": 4096}, "min_tokens"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
async def test_a_wrong_or_unsupported_chat_field_is_named(fields: dict[str, Any], param: str) -> None:
    backend = FakeBackend(says("never"))
    async with client_of(backend) as client:
        body = {"messages": HELLO, **fields}
        response = await client.post("/v1/chat/completions", content=_json(body), headers=JSON)
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert param in error["message"]
    assert backend.requests == []


@pytest.mark.parametrize(
    ("fields", "mend"),
    [
        ({"logit_bias": {"cat": 1}}, 'use whole numbers such as "1234"'),
        ({"logit_bias": {"7": 101}}, "the bias of token 7 must be a number from -100 to 100"),
        ({"logit_bias": 5}, 'an object of token ids and biases, such as {"1234": -100}'),
        ({"logit_bias": {"300": 1}}, "the vocabulary ends at 258"),
        ({"presence_penalty": 3}, "less than or equal to 2"),
        ({"frequency_penalty": -3}, "greater than or equal to -2"),
        ({"repetition_penalty": 0}, "greater than or equal to 0.000001"),
        ({"min_tokens": 6, "max_tokens": 5}, "by max_tokens; set it to at most 5"),
        ({"min_tokens": 4096}, "set it to at most 2027"),
    ],
)
async def test_a_parameter_out_of_its_range_is_answered_with_the_mend(
    fields: dict[str, Any], mend: str
) -> None:
    response = await ask(FakeBackend(says("never")), **fields)
    assert response.status_code == 400
    assert mend in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [1, "a", [2.5]]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [5, 259]}, "prompt"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "best_of": 2}, "best_of"),
        ({"prompt": "x", "logprobs": 1, "echo": True}, "logprobs"),
        ({"prompt": ["x"] * 100, "n": 2}, "n"),
    ],
)
async def test_a_wrong_or_unsupported_completion_field_is_named(fields: dict[str, Any], param: str) -> None:
    response = await ask(FakeBackend(says("never")), "/v1/completions", **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"null", b"[1]", b'"text"', b"[" * 100_000, b'{"messages": ' * 2000],
)
async def test_a_body_that_is_no_json_object_is_refused(content: bytes) -> None:
    async with client_of(FakeBackend(says("never"))) as client:
        response = await client.post("/v1/chat/completions", content=content, headers=JSON)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_an_unknown_model_is_not_found() -> None:
    response = await ask(FakeBackend(says("never")), model="gpt-9")
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'tiny'" in error["message"]


async def test_a_prompt_that_fills_the_context_is_refused_with_its_own_code() -> None:
    backend = FakeBackend(says("never"), FakeInfo(max_context_len=21))
    response = await ask(backend)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (
        400,
        "context_length_exceeded",
        "messages",
    )


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_an_output_beyond_the_context_is_refused_and_says_what_would_fit(field: str) -> None:
    response = await ask(FakeBackend(says("never")), **{field: 2048})
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", field)
    assert "at most 2027" in error["message"]


async def test_an_output_that_just_fits_the_context_is_accepted() -> None:
    assert (await ask(FakeBackend(says("ok")), max_tokens=2027)).status_code == 200


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_body_beyond_the_bound_is_refused(is_announced: bool) -> None:
    async def pieces():
        for _ in range(4):
            yield b" " * 1024

    content = b" " * 4096 if is_announced else pieces()
    async with client_of(FakeBackend(says("never")), max_body_bytes=2048) as client:
        response = await client.post("/v1/chat/completions", content=content, headers=JSON)
    assert response.status_code == 413
    assert "2048 bytes" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)]
)
async def test_unknown_paths_and_methods_answer_in_the_same_shape(
    method: str, path: str, status: int
) -> None:
    async with client_of(FakeBackend(says("never"))) as client:
        response = await client.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def _json(body: object) -> bytes:
    """JSON as lax clients write it, NaN and lone surrogates included."""
    return json.dumps(body).encode()
