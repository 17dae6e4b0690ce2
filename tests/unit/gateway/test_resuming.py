"""Streams that outlive the scheduler: where they go on, how long they wait, and when they end in an error."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import pytest
from gateway_fakes import EOS, FakeInfo
from http_client import ask, content_of, events_of

from dspark.decoding.types import FinishReason, GenerationRequest, TokenDelta
from dspark.errors import EngineError, PeerLostError, ServiceUnavailableError, UnknownRequestError
from gateway.resuming import ResumePolicy, ResumingBackend
from tests.fakes import FakeClock, greedy_request

pytestmark = pytest.mark.timeout(20)
LOST = PeerLostError("scheduler: Socket closed")
AWAY = ServiceUnavailableError("scheduler: connection refused")


class FakeSchedulers:
    """A row of lives: each sends tokens and then fails, or ends the stream where it has no failure."""

    def __init__(self, *lives: tuple[Sequence[int], Exception | None]) -> None:
        self.lives = list(lives)
        self.resumed_behind: list[list[int]] = []
        self.num_open = 0

    async def get_info(self) -> FakeInfo:
        return FakeInfo()

    def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenDelta, None]:
        return self._life(0)

    def resume(self, request_id: str, received: Sequence[int]) -> AsyncGenerator[TokenDelta, None]:
        self.resumed_behind.append(list(received))
        return self._life(len(received))

    async def _life(self, start: int) -> AsyncGenerator[TokenDelta, None]:
        token_ids, failure = self.lives.pop(0)
        self.num_open += 1
        try:
            for k, token_id in enumerate(token_ids):
                reason = FinishReason.STOP if failure is None and k == len(token_ids) - 1 else None
                yield TokenDelta("r", start + k, (token_id,), finish_reason=reason)
            if failure is not None:
                raise failure
        finally:
            self.num_open -= 1


async def read(backend: ResumingBackend) -> list[int]:
    tokens: list[int] = []
    async for delta in backend.generate(greedy_request("r")):
        assert delta.start == len(tokens)
        tokens.extend(delta.token_ids)
    return tokens


async def test_a_stream_goes_on_behind_the_tokens_it_has_as_often_as_the_scheduler_is_lost():
    schedulers = FakeSchedulers(([1, 2], LOST), ([], AWAY), ([3], LOST), ([], LOST), ([4, 5], None))
    assert await read(ResumingBackend(schedulers, clock=FakeClock())) == [1, 2, 3, 4, 5]
    assert schedulers.resumed_behind == [[1, 2], [1, 2], [1, 2, 3], [1, 2, 3]]


async def test_attempts_come_at_growing_distances_until_patience_ends_with_the_first_error():
    clock = FakeClock()
    schedulers = FakeSchedulers(([1], LOST), *[([], AWAY)] * 100)
    policy = ResumePolicy(first_pause_s=0.1, longest_pause_s=2.0, patience_s=10.0)
    with pytest.raises(PeerLostError, match="Socket closed"):
        await read(ResumingBackend(schedulers, policy, clock))
    # 0.1 + 0.2 + 0.4 + 0.8 + 1.6, then every two seconds.
    assert len(schedulers.resumed_behind) == 9
    assert clock.time_s - 1000 <= 12


async def test_a_token_renews_the_patience():
    schedulers = FakeSchedulers(*[([7], LOST), *[([], AWAY)] * 5] * 4, ([8], None))
    backend = ResumingBackend(schedulers, ResumePolicy(first_pause_s=1, patience_s=8), FakeClock())
    assert await read(backend) == [7, 7, 7, 7, 8]


async def test_a_request_nobody_remembers_ends_with_the_error_of_the_loss():
    schedulers = FakeSchedulers(([1], LOST), ([], UnknownRequestError("not in the store")))
    with pytest.raises(PeerLostError, match="Socket closed"):
        await read(ResumingBackend(schedulers, clock=FakeClock()))


@pytest.mark.parametrize("error", [AWAY, EngineError("nan")])
async def test_only_a_stream_that_had_begun_is_resumed(error):
    schedulers = FakeSchedulers(([], error))
    with pytest.raises(type(error)):
        await read(ResumingBackend(schedulers, clock=FakeClock()))
    assert schedulers.resumed_behind == []


async def test_closing_a_resumed_stream_closes_that_of_the_scheduler():
    schedulers = FakeSchedulers(([1], LOST), ([2, 3, 4], None))
    stream = ResumingBackend(schedulers, clock=FakeClock()).generate(greedy_request("r"))
    assert [(await anext(stream)).token_ids for _ in range(2)] == [(1,), (2,)]
    assert schedulers.num_open == 1
    await stream.aclose()
    assert schedulers.num_open == 0


async def test_the_client_sees_one_unbroken_text():
    schedulers = FakeSchedulers((b"Hel", LOST), (b"lo", LOST), ([*b"!", EOS], None))
    response = await ask(ResumingBackend(schedulers, clock=FakeClock()), stream=True)
    assert content_of(events_of(response)) == "Hello!"


async def test_a_stream_that_cannot_go_on_ends_with_openais_error_object():
    schedulers = FakeSchedulers((b"Hel", LOST), ([], UnknownRequestError("not in the store")))
    response = await ask(ResumingBackend(schedulers, clock=FakeClock()), stream=True)
    *_, last = events_of(response)
    assert last["error"] == {
        "message": "scheduler: Socket closed",
        "type": "server_error",
        "param": None,
        "code": "service_unavailable",
    }
