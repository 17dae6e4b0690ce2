"""The gateway behind a real server on the loopback, used by the `openai` package and by raw sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest

from dspark.decoding.types import TokenDelta
from dspark.errors import EngineError, OverloadedError, ServiceUnavailableError
from gateway.app import create_app
from gateway.server import open_socket, serve_until
from tests.unit.gateway.gateway_fakes import EOS, FakeBackend, make_edge, says

MESSAGES = [{"role": "user", "content": "hi"}]
FIRST = TokenDelta("r", 0, (72, 105))


@asynccontextmanager
async def running(backend: FakeBackend, **options: float) -> AsyncIterator[int]:
    """A real server on a free port; yields the port."""
    listener = open_socket("127.0.0.1", 0)
    stop = asyncio.Event()
    app = create_app(make_edge(backend, **options))
    serving = asyncio.create_task(serve_until(stop, app, listener, shutdown_grace_s=1))
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        await serving


@asynccontextmanager
async def openai_client(backend: FakeBackend) -> AsyncIterator[openai.AsyncOpenAI]:
    async with running(backend) as port:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, http_client=http
        ) as client:
            yield client


async def test_the_openai_client_reads_a_whole_answer() -> None:
    async with openai_client(FakeBackend(says("Héllo 🙂"))) as client:
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert answer.choices[0].message.content == "Héllo 🙂"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (21, len("Héllo 🙂".encode()) + 1)
    assert answer._request_id


async def test_the_openai_client_reads_a_stream_with_usage_at_its_end() -> None:
    async with openai_client(FakeBackend(says("Héllo 🙂", 2, 5))) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "Héllo 🙂"
    assert [c.usage for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    assert len({(c.id, c.model) for c in chunks}) == 1


async def test_the_openai_client_reads_choices_and_log_probabilities() -> None:
    async with openai_client(FakeBackend(says("ab"))) as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, n=2, logprobs=True, top_logprobs=2, seed=1
        )
        text = await client.completions.create(model="tiny", prompt=["x", "y"], n=2, logprobs=2, stop="b")
    assert [c.index for c in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert [e.token for e in choice.logprobs.content or []] == ["a", "b", "<|im_end|>"]
    assert [c.text for c in text.choices] == ["a"] * 4
    assert text.choices[0].logprobs is not None
    assert text.choices[0].logprobs.tokens == ["a", "b"]


async def test_the_openai_stream_helper_accumulates_the_answer() -> None:
    async with (
        openai_client(FakeBackend(says("Hello"))) as client,
        client.chat.completions.stream(model="tiny", messages=MESSAGES) as stream,
    ):
        answer = await stream.get_final_completion()
    assert answer.choices[0].message.content == "Hello"


async def test_the_openai_client_lists_models() -> None:
    async with openai_client(FakeBackend(says("x"))) as client:
        assert [m.id async for m in client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("tiny")).owned_by == "dspark"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OverloadedError("The queue is full."), openai.RateLimitError),
        (ServiceUnavailableError("The scheduler is down."), openai.InternalServerError),
        (EngineError("The forward pass failed."), openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("is_stream", [True, False])
async def test_failures_raise_the_classes_of_the_openai_client(
    error: Exception, expected: type[openai.APIStatusError], is_stream: bool
) -> None:
    async with openai_client(FakeBackend(lambda r: [error])) as client:
        with pytest.raises(expected, match=str(error)):
            await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=is_stream)


async def test_client_faults_raise_the_classes_of_the_openai_client() -> None:
    async with openai_client(FakeBackend(says("x"))) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="gpt-9", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
        with pytest.raises(openai.BadRequestError) as long:
            await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=9999)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    assert wrong.value.param == "temperature"
    assert long.value.code == "context_length_exceeded"


async def test_an_error_in_the_middle_of_a_stream_raises_in_the_openai_client() -> None:
    async with openai_client(
        FakeBackend(lambda r: [FIRST, EngineError("The forward pass failed.")])
    ) as client:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        text = ""
        with pytest.raises(openai.APIError, match="The forward pass failed"):  # noqa: PT012
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
    assert text == "Hi"


async def test_the_openai_client_retries_an_overload() -> None:
    attempts: list[int] = []

    def script(request: object) -> list[TokenDelta | BaseException]:
        attempts.append(1)
        if len(attempts) == 1:
            return [OverloadedError("The queue is full.")]
        return [TokenDelta("r", 0, (72, EOS))]

    async with openai_client(FakeBackend(script)) as client:
        answer = await client.with_options(max_retries=1).chat.completions.create(
            model="tiny", messages=MESSAGES
        )
    assert answer.choices[0].message.content == "H"
    assert len(attempts) == 2


async def test_a_silent_scheduler_is_bridged_with_comments_until_the_first_token() -> None:
    gate = asyncio.Event()
    backend = FakeBackend(lambda r: [gate, FIRST, gate, TokenDelta("r", 2, (EOS,))])
    async with running(backend, keep_alive_s=0.01) as port:
        reader, writer = await _post(port, {"messages": MESSAGES, "stream": True})
        await reader.readuntil(b": keep-alive\n\n")
        gate.set()
        await reader.readuntil(b"data: [DONE]")
        writer.close()


@pytest.mark.parametrize("first", [[], [FIRST]])
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_closed_connection_closes_the_scheduler_stream(
    first: list[TokenDelta], is_stream: bool, n: int
) -> None:
    forever = asyncio.Event()
    backend = FakeBackend(lambda r: [*first, forever])
    async with running(backend) as port:
        fields = {"messages": MESSAGES, "stream": is_stream, "n": n, "max_tokens": 9}
        reader, writer = await _post(port, fields)
        if first and is_stream:
            await reader.readuntil(b"Hi")
        else:
            await backend.opened.wait()
        assert backend.num_open > 0
        writer.close()
        await backend.all_closed()
    assert backend.num_open == 0
    assert not forever.is_set()


async def test_leaving_a_stream_of_the_openai_client_closes_the_scheduler_stream() -> None:
    forever = asyncio.Event()
    backend = FakeBackend(lambda r: [FIRST, forever])
    async with openai_client(backend) as client:
        async with await client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True
        ) as stream:
            assert (await anext(stream)).choices[0].delta.role == "assistant"
            assert (await anext(stream)).choices[0].delta.content == "Hi"
        await backend.all_closed()
    assert backend.num_open == 0


async def test_sixteen_streams_at_once_do_not_mix() -> None:
    def script(request: object) -> list[TokenDelta]:
        prompt = getattr(request, "prompt_token_ids", ())
        ids = (*prompt, *prompt)
        return [TokenDelta("r", 2 * k, ids[2 * k : 2 * k + 2]) for k in range(len(ids) // 2)]

    prompts = [f"prompt {i:02d} é" * (i + 1) for i in range(16)]
    async with openai_client(FakeBackend(script)) as client:
        texts = await asyncio.gather(*(_streamed(client, p) for p in prompts))
    assert texts == [p * 2 for p in prompts]


async def _post(port: int, fields: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a chat request on a raw connection."""
    body = json.dumps(fields).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
    await writer.drain()
    return reader, writer


async def _streamed(client: openai.AsyncOpenAI, prompt: str) -> str:
    stream = await client.completions.create(
        model="tiny", prompt=prompt, stream=True, max_tokens=2 * len(prompt.encode())
    )
    return "".join([chunk.choices[0].text async for chunk in stream])
