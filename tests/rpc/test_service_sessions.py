"""Long-lived sessions: no answer is taken for another, failures stay with their request, drains end them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dspark.api.v1 import scheduler_pb2_grpc, verifier_pb2_grpc
from dspark.decoding.types import FinishReason, GenerationRequest, PrefillItem, StepResult, TokenDelta
from dspark.errors import (
    DeadlineError,
    EngineError,
    InvalidRequestError,
    PeerLostError,
    ServiceUnavailableError,
)
from dspark.rounds.local import LocalVerifier
from services.runtime.channel import open_channel
from services.scheduler import wire as scheduler_wire
from services.scheduler.client import SchedulerClient
from services.scheduler.info import SchedulerInfo
from services.verifier import wire as verifier_wire
from services.verifier.client import VerifierClient
from tests.fakes import FakeVerifier, greedy_request
from tests.rpc.rpc_fakes import scheduler_service, socket_address, until, verifier_service


class GatedEngine:
    """A target engine whose first step waits; the size of a step comes back as its batch tokens."""

    info = FakeVerifier().info

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()
        self.num_steps = 0

    def step(self, items):
        self.num_steps += 1
        if self.num_steps == 1:
            self.entered.set()
            self.release.wait(20)
        return StepResult((), len(items), 1, 1), []

    def close(self, request_ids) -> None:
        """Nothing is held."""


def step_of(size: int) -> list[PrefillItem]:
    return [PrefillItem("r", 1, 1)] * size


@pytest.fixture
def address(tmp_path: Path) -> str:
    return socket_address(tmp_path, "s")


async def test_a_late_answer_is_never_taken_for_that_of_the_next_call(address: str) -> None:
    engine = GatedEngine()
    target = LocalVerifier(engine)
    async with verifier_service(target, address), open_channel(address) as channel:
        client = VerifierClient(channel, step_timeout_s=0.05)
        with pytest.raises(DeadlineError):
            await client.step(step_of(1))
        engine.release.set()
        patient = VerifierClient(channel)
        for size in (2, 3, 4):
            assert (await patient.step(step_of(size))).batch_tokens == size
        client._step_timeout_s = 20
        for size in (5, 6):
            assert (await client.step(step_of(size))).batch_tokens == size
    target.shutdown()


async def test_concurrent_calls_of_a_session_get_their_own_answers(address: str) -> None:
    engine = GatedEngine()
    engine.release.set()
    target = LocalVerifier(engine)
    async with verifier_service(target, address), open_channel(address) as channel:
        client = VerifierClient(channel)
        results = await asyncio.gather(*(client.step(step_of(size)) for size in range(1, 20)))
    target.shutdown()
    assert [result.batch_tokens for result in results] == list(range(1, 20))


async def test_a_session_goes_on_after_an_error(address: str) -> None:
    target = FakeVerifier()
    target.step_failures = [EngineError("once"), None]
    async with verifier_service(target, address), open_channel(address) as channel:
        client = VerifierClient(channel)
        with pytest.raises(EngineError, match="once"):
            await client.step(step_of(1))
        assert len((await client.step(step_of(2))).outcomes) == 2


async def test_a_drain_lets_a_step_end_and_then_closes_its_session(address: str) -> None:
    engine = GatedEngine()
    target = LocalVerifier(engine)
    async with verifier_service(target, address) as servicer, open_channel(address) as channel:
        busy, idle = VerifierClient(channel), VerifierClient(channel)
        step = asyncio.create_task(busy.step(step_of(1)))
        await asyncio.to_thread(engine.entered.wait, 10)
        servicer.drain()
        engine.release.set()
        assert (await step).batch_tokens == 1
        with pytest.raises(ServiceUnavailableError):
            await busy.step(step_of(2))
        with pytest.raises(ServiceUnavailableError):
            await idle.step(step_of(2))
    target.shutdown()


async def test_single_calls_do_the_same_as_sessions(address: str) -> None:
    target = FakeVerifier()
    async with verifier_service(target, address), open_channel(address) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        message = await stub.Verify(verifier_wire.items_to_pb(step_of(2)), timeout=5)
        assert verifier_wire.result_from_pb(message) == replace(
            await VerifierClient(channel).step(step_of(2)), verify_ns=message.verify_ns
        )


class Script:
    """Streams whose deltas and ends a test decides."""

    def __init__(self) -> None:
        self.queues: dict[str, asyncio.Queue[TokenDelta | Exception]] = {}
        self.closed: list[str] = []

    async def submit(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        queue = self.queues[request.request_id] = asyncio.Queue()
        try:
            while True:
                event = await queue.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            self.closed.append(request.request_id)

    def say(self, request_id: str, start: int, *tokens: int, finish: FinishReason | None = None) -> None:
        self.queues[request_id].put_nowait(TokenDelta(request_id, start, tokens, finish_reason=finish))


def info() -> SchedulerInfo:
    return SchedulerInfo("target")


async def start(client: SchedulerClient, script: Script, request_id: str) -> asyncio.Task[list[int]]:
    task = asyncio.create_task(read_all(client, request_id))
    await until(lambda: request_id in script.queues)
    return task


async def read_all(client: SchedulerClient, request_id: str) -> list[int]:
    tokens: list[int] = []
    async for delta in client.generate(greedy_request(request_id)):
        tokens.extend(delta.token_ids)
    return tokens


async def test_requests_of_one_session_end_apart(address: str) -> None:
    script = Script()
    async with scheduler_service(script.submit, info, address), open_channel(address) as channel:
        client = SchedulerClient(channel)
        good, bad, odd = [await start(client, script, name) for name in ("good", "bad", "odd")]
        script.say("good", 0, 1, 2)
        script.queues["bad"].put_nowait(InvalidRequestError("no", "prompt"))
        script.queues["odd"].put_nowait(KeyError("secret"))
        with pytest.raises(InvalidRequestError) as caught:
            await bad
        assert caught.value.field == "prompt"
        with pytest.raises(EngineError, match="internal error"):
            await odd
        script.say("good", 2, 3, finish=FinishReason.STOP)
        assert await good == [1, 2, 3]


async def test_closing_one_request_of_a_session_frees_that_one(address: str) -> None:
    script = Script()
    async with scheduler_service(script.submit, info, address), open_channel(address) as channel:
        client = SchedulerClient(channel)
        kept = await start(client, script, "kept")
        given_up = await start(client, script, "given up")
        given_up.cancel()
        await until(lambda: script.closed == ["given up"])
        script.say("kept", 0, 7, finish=FinishReason.LENGTH)
        assert await kept == [7]


async def test_an_id_in_use_is_refused_and_the_first_owner_goes_on(address: str) -> None:
    script = Script()
    async with scheduler_service(script.submit, info, address), open_channel(address) as channel:
        client = SchedulerClient(channel)
        first = await start(client, script, "same")
        with pytest.raises(InvalidRequestError, match="in use"):
            await read_all(client, "same")
        script.say("same", 0, 1, finish=FinishReason.STOP)
        assert await first == [1]
        second = asyncio.create_task(read_all(client, "same"))
        await until(lambda: script.queues["same"].empty() and len(script.closed) == 1)
        await say_until_done(second, lambda: script.say("same", 0, 2, finish=FinishReason.STOP))
        assert await second == [2]


async def say_until_done(task: asyncio.Task[list[int]], say: Callable[[], None]) -> None:
    while not task.done():
        say()
        await asyncio.sleep(0.01)


async def test_a_lost_gateway_frees_all_its_requests(address: str) -> None:
    script = Script()
    async with scheduler_service(script.submit, info, address):
        async with open_channel(address) as channel:
            client = SchedulerClient(channel)
            tasks = [await start(client, script, name) for name in "ab"]
        for task in tasks:
            with pytest.raises(ServiceUnavailableError):
                await task
        await until(lambda: sorted(script.closed) == ["a", "b"])


async def test_a_lost_scheduler_ends_its_requests_and_a_new_one_is_found(address: str) -> None:
    script = Script()
    async with open_channel(address) as channel:
        client = SchedulerClient(channel)
        async with scheduler_service(script.submit, info, address):
            lost = await start(client, script, "lost")
        with pytest.raises(PeerLostError):
            await lost
        async with scheduler_service(script.submit, info, address):
            await until_answered(client)
            found = await start(client, script, "found")
            script.say("found", 0, 5, finish=FinishReason.STOP)
            assert await found == [5]


async def test_a_scheduler_that_never_took_the_request_is_not_told_as_lost(address: str) -> None:
    async with open_channel(address) as channel:
        with pytest.raises(ServiceUnavailableError) as caught:
            await read_all(SchedulerClient(channel), "r")
    assert type(caught.value) is ServiceUnavailableError


async def test_a_resumption_says_which_request_and_how_far_the_caller_has_it(address: str) -> None:
    async def resume(request_id: str, received: Sequence[int]) -> AsyncIterator[TokenDelta]:
        yield TokenDelta(request_id, len(received), (*received, 9), finish_reason=FinishReason.STOP)

    script = Script()
    async with (
        scheduler_service(script.submit, info, address, resume=resume),
        open_channel(address) as channel,
    ):
        (delta,) = [delta async for delta in SchedulerClient(channel).resume("r", [4, 5])]
    assert (delta.request_id, delta.start, delta.token_ids) == ("r", 2, (4, 5, 9))


async def until_answered(client: SchedulerClient) -> None:
    while True:
        try:
            await client.get_info()
        except ServiceUnavailableError:
            await asyncio.sleep(0.01)
        else:
            return


async def test_a_draining_session_ends_its_requests_and_takes_no_more(address: str) -> None:
    script = Script()
    async with scheduler_service(script.submit, info, address) as servicer, open_channel(address) as channel:
        client = SchedulerClient(channel)
        running = await start(client, script, "running")
        servicer.drain()
        with pytest.raises(ServiceUnavailableError, match="shutting down"):
            await read_all(client, "refused")
        script.say("running", 0, 1, 2, finish=FinishReason.STOP)
        assert await running == [1, 2]


async def test_silence_ends_a_stream_with_its_deadline(address: str) -> None:
    script = Script()
    async with scheduler_service(script.submit, info, address), open_channel(address) as channel:
        client = SchedulerClient(channel, silence_timeout_s=0.05)
        with pytest.raises(DeadlineError, match="no tokens"):
            await read_all(client, "r")
        await until(lambda: script.closed == ["r"])


async def test_a_single_stream_does_the_same_as_a_session(address: str) -> None:
    script = Script()
    async with scheduler_service(script.submit, info, address), open_channel(address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        call = stub.Generate(scheduler_wire.request_to_pb(greedy_request("r")))
        await until(lambda: "r" in script.queues)
        script.say("r", 0, 4, 5)
        delta = scheduler_wire.delta_from_pb("r", await call.read())
        assert delta.token_ids == (4, 5)
        call.cancel()
        await until(lambda: script.closed == ["r"])
