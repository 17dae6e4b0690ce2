"""When the scheduler refuses, fails or is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

import pytest

import dspark.errors
from dspark.decoding.types import TokenDelta
from dspark.errors import (
    DsparkError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    ServiceUnavailableError,
)
from gateway.errors import error_response, kind_of
from gateway.sse import with_pauses
from tests.unit.gateway.gateway_fakes import FakeBackend, FakeInfo, says
from tests.unit.gateway.http_client import HELLO, ask, client_of, events_of

FIRST = TokenDelta("r", 0, (72, 105))


def every_error(root: type[DsparkError] = DsparkError) -> Iterator[type[DsparkError]]:
    yield root
    for sub in root.__subclasses__():
        yield from every_error(sub)


@pytest.mark.parametrize("error", sorted(every_error(), key=lambda e: e.__name__))
def test_every_error_of_the_tree_has_a_status_and_only_client_faults_are_below_500(
    error: type[DsparkError],
) -> None:
    kind = kind_of(error("text"))
    is_client_fault = issubclass(error, InvalidRequestError | OverloadedError)
    assert (400 <= kind.status < 500) == is_client_fault
    response = error_response(error("text"))
    assert ("retry-after" in response.headers) == (kind.status in (429, 503))


@pytest.mark.parametrize("is_stream", [True, False])
async def test_overload_is_429_and_says_when_to_come_back(is_stream: bool) -> None:
    backend = FakeBackend(lambda r: [OverloadedError("The queue is full.", retry_after_s=2.2)])
    response = await ask(backend, stream=is_stream)
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    assert response.json()["error"]["message"] == "The queue is full."


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_scheduler_that_is_down_is_503_and_says_when_to_come_back(is_stream: bool) -> None:
    down = ServiceUnavailableError("The scheduler does not answer.")
    for backend in (FakeBackend(lambda r: [down]), FakeBackend(says("never"), down)):
        response = await ask(backend, stream=is_stream)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")


async def test_a_model_that_is_still_loading_is_503() -> None:
    response = await ask(FakeBackend(says("never"), FakeInfo(max_context_len=0, is_verifier_ready=False)))
    assert response.status_code == 503
    assert "loading" in response.json()["error"]["message"]


async def test_an_error_after_the_first_token_is_a_data_object_and_then_the_end() -> None:
    backend = FakeBackend(lambda r: [FIRST, EngineError("The forward pass failed.")])
    response = await ask(backend, stream=True)
    assert response.status_code == 200
    events = events_of(response)
    assert events[1]["choices"][0]["delta"] == {"content": "Hi"}
    assert events[-1]["error"]["message"] == "The forward pass failed."
    assert len(events) == 3


async def test_a_bug_in_the_middle_of_a_stream_leaks_no_text(caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeBackend(lambda r: [FIRST, KeyError("secret")])
    events = events_of(await ask(backend, stream=True))
    assert events[-1]["error"]["code"] == "internal_error"
    assert "secret" not in str(events)
    assert "secret" in caplog.text


async def test_an_error_after_the_first_token_fails_a_whole_response() -> None:
    response = await ask(FakeBackend(lambda r: [FIRST, EngineError("The forward pass failed.")]))
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")


async def test_a_stream_that_ends_without_a_reason_is_an_error_not_a_short_answer() -> None:
    events = events_of(await ask(FakeBackend(lambda r: [FIRST]), stream=True))
    assert "before the output was complete" in events[-1]["error"]["message"]


async def test_one_failing_choice_ends_and_frees_the_others() -> None:
    forever = asyncio.Event()

    def script(request: object) -> list[object]:
        fails = str(getattr(request, "request_id", "")).endswith("-1")
        return [EngineError("The forward pass failed.")] if fails else [FIRST, forever]

    backend = FakeBackend(script)  # type: ignore[arg-type]
    response = await ask(backend, n=3)
    assert response.status_code == 500
    assert backend.num_open == 0


async def test_a_silence_is_told_and_loses_no_item() -> None:
    gate = asyncio.Event()

    async def items() -> AsyncGenerator[int, None]:
        yield 1
        await gate.wait()
        yield 2

    seen: list[int | None] = []
    async for item in with_pauses(items(), 0.001):
        seen.append(item)
        if seen.count(None) == 2:
            gate.set()
    assert [i for i in seen if i is not None] == [1, 2]
    assert seen.count(None) >= 2


@pytest.mark.parametrize("given", ["trace-1", None, "a b", "x" * 200])
async def test_a_request_id_is_echoed_or_made(given: str | None) -> None:
    headers = {} if given is None else {"x-request-id": given}
    async with client_of(FakeBackend(says("ok"))) as client:
        for path, body in (("/v1/chat/completions", {"messages": HELLO}), ("/v1/chat/completions", {})):
            response = await client.post(path, json=body, headers=headers)
            echoed = response.headers["x-request-id"]
            assert echoed == given if given == "trace-1" else len(echoed) == 32


def test_the_error_tree_is_the_one_of_dspark() -> None:
    names = {e.__name__ for e in every_error()}
    assert names >= {n for n in vars(dspark.errors) if n.endswith("Error")}
