"""A scheduler process that is killed under its streams: the next one goes on, and no reader notices."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dspark.decoding.types import GenerationRequest
from dspark.errors import PeerLostError, StaleEpochError
from gateway.backend import GenerationBackend
from gateway.resuming import ResumePolicy, ResumingBackend
from services.runtime.channel import open_channel
from services.scheduler.client import SchedulerClient
from tests.fakes import FakeVerifier, continuation, greedy_request
from tests.rpc.rpc_fakes import socket_address, until, verifier_service
from tests.rpc.store_server import StoreServer
from tests.rpc.test_service_processes import Output, process
from tests.rpc.test_service_store import tokens_of

# Two starts of a process, on a machine that may be busy.
pytestmark = pytest.mark.timeout(180)
PROMPTS = [(number, 7, 2 * number) for number in range(6)]


class SlowVerifier(FakeVerifier):
    """Steps take long enough to be interrupted."""

    async def step(self, items):
        await asyncio.sleep(0.005)
        return await super().step(items)


class Place:
    """Where schedulers come and go: their address, verifier and store."""

    def __init__(self, folder: Path, store: StoreServer) -> None:
        self.store = store
        self.target = SlowVerifier()
        self.verifier_address = socket_address(folder, "v")
        self.address = socket_address(folder, "s")

    @asynccontextmanager
    async def scheduler(self):
        settings = {
            "LISTEN": self.address,
            "VERIFIER_ADDRESS": self.verifier_address,
            "REDIS_URL": self.store.url,
            "SHUTDOWN_GRACE_S": "0",
        }
        with process("scheduler", **settings) as child:
            output = Output(child)
            assert await asyncio.to_thread(output.is_ready.wait, 60), output.lines
            yield child
            child.kill()
            await asyncio.to_thread(output.join)

    @asynccontextmanager
    async def backend(self, **policy: float) -> AsyncIterator[ResumingBackend]:
        async with open_channel(self.address) as channel:
            yield ResumingBackend(SchedulerClient(channel), ResumePolicy(**{"patience_s": 90, **policy}))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreServer]:
    store = StoreServer(tmp_path)
    store.start()
    yield store
    store.kill()


@pytest.fixture
async def place(tmp_path: Path, store: StoreServer) -> AsyncIterator[Place]:
    place = Place(tmp_path, store)
    async with verifier_service(place.target, place.verifier_address):
        yield place


class Reader:
    """Reads one stream and checks that its deltas are contiguous."""

    def __init__(self, backend: GenerationBackend, request: GenerationRequest) -> None:
        self.tokens: list[int] = []
        self.task = asyncio.create_task(self._read(backend, request))

    async def _read(self, backend: GenerationBackend, request: GenerationRequest) -> list[int]:
        async for delta in backend.generate(request):
            assert delta.start == len(self.tokens)
            self.tokens.extend(delta.token_ids)
        return self.tokens


def read_all(backend: ResumingBackend, num_tokens: int) -> list[Reader]:
    requests = [greedy_request(f"r{n}", prompt, num_tokens) for n, prompt in enumerate(PROMPTS)]
    return [Reader(backend, request) for request in requests]


@pytest.mark.parametrize("end", ["kill", "terminate"])
async def test_streams_outlive_a_scheduler_that_is_killed_or_told_to_stop(place: Place, end: str) -> None:
    async with place.backend() as backend:
        async with place.scheduler() as child:
            readers = read_all(backend, 300)
            await until(lambda: all(len(reader.tokens) > 20 for reader in readers))
            getattr(child, end)()
            await asyncio.to_thread(child.wait, 20)
        assert not any(reader.task.done() for reader in readers)
        async with place.scheduler():
            outputs = await asyncio.gather(*(reader.task for reader in readers))
            await until(lambda: place.target.num_used_pages == 0)
    assert outputs == [continuation(prompt, 300) for prompt in PROMPTS]


async def test_a_scheduler_that_was_only_asleep_can_commit_nothing_any_more(place: Place, tmp_path) -> None:
    other = Place(tmp_path, place.store)
    other.target, other.verifier_address = place.target, place.verifier_address
    other.address = socket_address(tmp_path, "other")
    request = greedy_request("r", PROMPTS[1], 390)
    async with (
        place.scheduler() as asleep,
        other.scheduler(),
        open_channel(place.address) as channel,
        open_channel(other.address) as other_channel,
    ):
        reader = Reader(SchedulerClient(channel), request)
        await until(lambda: len(reader.tokens) > 20)
        asleep.send_signal(signal.SIGSTOP)
        received = list(reader.tokens)
        async for delta in SchedulerClient(other_channel).resume("r", list(received)):
            received.extend(delta.token_ids)
        asleep.send_signal(signal.SIGCONT)
        with pytest.raises(StaleEpochError, match="taken over"):
            await reader.task
    assert received == continuation(PROMPTS[1], 390)
    assert tokens_of(place.store) == (*PROMPTS[1], *received)


async def test_tokens_the_store_never_saw_are_not_lost(place: Place) -> None:
    async with place.backend() as backend:
        async with place.scheduler() as child:
            readers = read_all(backend, 200)
            await until(lambda: all(len(reader.tokens) > 5 for reader in readers))
            place.store.pause()
            await until(lambda: all(len(reader.tokens) > 40 for reader in readers))
            child.kill()
        place.store.go_on()
        async with place.scheduler():
            outputs = await asyncio.gather(*(reader.task for reader in readers))
    assert outputs == [continuation(prompt, 200) for prompt in PROMPTS]


async def test_a_store_that_died_too_ends_the_streams_with_the_error_of_the_loss(place: Place) -> None:
    async with place.backend(patience_s=1.0) as backend:
        async with place.scheduler() as child:
            readers = read_all(backend, 300)
            await until(lambda: all(reader.tokens for reader in readers))
            place.store.kill()
            child.kill()
        outcomes = await asyncio.gather(*(reader.task for reader in readers), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [PeerLostError] * len(PROMPTS)


async def test_a_store_that_forgot_a_request_ends_its_stream_with_the_error_of_the_loss(place: Place) -> None:
    async with place.backend() as backend:
        async with place.scheduler() as child:
            readers = read_all(backend, 300)
            await until(lambda: all(reader.tokens for reader in readers))
            child.kill()
        with place.store.client() as client:
            client.flushall()
        async with place.scheduler():
            outcomes = await asyncio.gather(*(reader.task for reader in readers), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [PeerLostError] * len(PROMPTS)
