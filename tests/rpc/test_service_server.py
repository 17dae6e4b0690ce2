"""The server every service shares: health, refusal while loading, statuses, sizes, ports, graceful stop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dspark import errors
from dspark.api.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from dspark.api.v1.verifier_pb2_grpc import add_VerifierServiceServicer_to_server
from dspark.decoding.types import FinishReason, GenerationRequest, TokenDelta
from dspark.errors import ConfigurationError, DsparkError, EngineError, ServiceUnavailableError
from dspark.rounds.local import LocalVerifier
from services.runtime.channel import MAX_MESSAGE_BYTES, open_channel
from services.runtime.idle import IdleRequests
from services.runtime.server import Served, ServiceServer, serve
from services.scheduler.client import SchedulerClient
from services.scheduler.info import SchedulerInfo
from services.scheduler.servicer import SERVICE_NAME as SCHEDULER_NAME
from services.scheduler.servicer import SchedulerServicer
from services.verifier.client import VerifierClient
from services.verifier.servicer import SERVICE_NAME as VERIFIER_NAME
from services.verifier.servicer import VerifierServicer
from tests.fakes import FakeVerifier, greedy_request
from tests.rpc.rpc_fakes import scheduler_service, socket_address, verifier_service
from tests.rpc.test_status_table import all_errors

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health_of(channel: grpc.aio.Channel, name: str) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)).status


def info() -> SchedulerInfo:
    return SchedulerInfo("target")


@pytest.fixture
def address(tmp_path: Path) -> str:
    return socket_address(tmp_path, "s")


async def test_a_server_is_alive_before_and_ready_after_its_service_is_attached(address: str) -> None:
    server = ServiceServer(VERIFIER_NAME, address)
    await server.start()
    async with open_channel(address) as channel:
        assert await health_of(channel, "") == SERVING
        assert await health_of(channel, VERIFIER_NAME) == NOT_SERVING
        with pytest.raises(ServiceUnavailableError, match="loading"):
            await VerifierClient(channel).get_info()
        await server.attach(lambda handlers: add_verifier(FakeVerifier(), handlers))
        assert await health_of(channel, VERIFIER_NAME) == SERVING
        assert (await VerifierClient(channel).get_info()).name == "fake-target"
    await server.stop(0)


def add_verifier(target: FakeVerifier, handlers) -> None:
    servicer = VerifierServicer(target, IdleRequests(9, time.monotonic))
    add_VerifierServiceServicer_to_server(servicer, handlers)


async def test_a_stream_is_refused_too_while_loading(address: str) -> None:
    server = ServiceServer(SCHEDULER_NAME, address)
    await server.start()
    async with open_channel(address) as channel:
        with pytest.raises(ServiceUnavailableError, match="loading"):
            await anext(SchedulerClient(channel).generate(greedy_request("r")))
    await server.stop(0)


async def test_reflection_names_the_service(address: str) -> None:
    async with scheduler_service(None, info, address), open_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=5
        )
        answer = await call.read()
        names = {service.name for service in answer.list_services_response.service}
        assert SCHEDULER_NAME in names
        call.cancel()


def failing(error: Exception):
    async def submit(request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        yield TokenDelta(request.request_id, 0, (1,))
        raise error

    return submit


@pytest.mark.parametrize("kind", all_errors())
async def test_every_error_of_a_stream_reaches_the_caller_as_its_class(address: str, kind) -> None:
    async with scheduler_service(failing(kind("why")), info, address), open_channel(address) as channel:
        stream = SchedulerClient(channel).generate(greedy_request("r"))
        assert (await anext(stream)).token_ids == (1,)
        with pytest.raises(DsparkError) as caught:
            await anext(stream)
        assert type(caught.value) is kind
        assert str(caught.value) == "why"


@pytest.mark.parametrize("kind", all_errors())
async def test_every_error_of_a_unary_call_reaches_the_caller_as_its_class(address: str, kind) -> None:
    target = FakeVerifier()
    target.outage = kind("why")
    async with verifier_service(target, address), open_channel(address) as channel:
        with pytest.raises(DsparkError) as caught:
            await VerifierClient(channel).step([])
        assert type(caught.value) is kind
        assert str(caught.value) == "why"


async def test_the_text_of_an_unknown_error_stays_in_the_log(address: str, caplog) -> None:
    target = FakeVerifier()
    target.outage = KeyError("secret")
    async with verifier_service(target, address), open_channel(address) as channel:
        with pytest.raises(EngineError) as caught:
            await VerifierClient(channel).step([])
    assert "secret" not in str(caught.value)
    assert "secret" in caplog.text


async def test_a_caller_learns_that_nobody_listens(address: str) -> None:
    async with open_channel(address) as channel:
        with pytest.raises(ServiceUnavailableError, match="verifier"):
            await VerifierClient(channel).get_info()


async def test_a_closed_channel_is_a_lost_peer(address: str) -> None:
    channel = open_channel(address)
    await channel.close()
    with pytest.raises(ServiceUnavailableError):
        await VerifierClient(channel).get_info()


async def test_a_deadline_ends_a_call_and_the_thread_goes_on(address: str) -> None:
    release = threading.Event()

    class SlowEngine:
        info = FakeVerifier().info

        def step(self, items):
            release.wait(20)
            raise EngineError("late")

    target = LocalVerifier(SlowEngine())
    async with verifier_service(target, address), open_channel(address) as channel:
        with pytest.raises(errors.DeadlineError):
            await VerifierClient(channel, step_timeout_s=0.05).step([])
        release.set()
    target.shutdown()


async def test_health_answers_during_a_forward(address: str) -> None:
    entered, release = threading.Event(), threading.Event()

    class SlowEngine:
        info = FakeVerifier().info

        def step(self, items):
            entered.set()
            release.wait(20)
            raise EngineError("done")

    target = LocalVerifier(SlowEngine())
    async with verifier_service(target, address), open_channel(address) as channel:
        step = asyncio.create_task(VerifierClient(channel).step([]))
        await asyncio.to_thread(entered.wait, 10)
        assert await health_of(channel, VERIFIER_NAME) == SERVING
        assert not step.done()
        release.set()
        with pytest.raises(EngineError, match="done"):
            await step
    target.shutdown()


async def test_messages_above_the_default_limit_pass_and_above_ours_do_not(address: str) -> None:
    async def submit(request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        yield TokenDelta(request.request_id, len(request.prompt_token_ids), ())

    async with scheduler_service(submit, info, address), open_channel(address) as channel:
        client = SchedulerClient(channel)
        prompt = (2**28 - 1,) * (2 << 20)  # 4 bytes each on the wire
        stream = client.generate(greedy_request("r", prompt))
        assert (await anext(stream)).start == len(prompt)
        await stream.aclose()
        too_long = (2**28 - 1,) * (MAX_MESSAGE_BYTES // 4 + 1)
        with pytest.raises(errors.OverloadedError):
            await anext(client.generate(greedy_request("r", too_long)))


async def test_a_taken_port_is_a_configuration_error() -> None:
    first = ServiceServer(VERIFIER_NAME, "127.0.0.1:0")
    bound = await first.start()
    with pytest.raises(ConfigurationError, match="cannot listen"):
        await ServiceServer(VERIFIER_NAME, bound).start()
    await first.stop(0)


async def test_a_stop_lets_a_running_call_end_and_refuses_new_ones(address: str) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def submit(request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        entered.set()
        await release.wait()
        yield TokenDelta(request.request_id, 7, (), finish_reason=FinishReason.STOP)

    async def resume(request_id: str, received: Sequence[int]) -> AsyncIterator[TokenDelta]:
        yield TokenDelta(request_id, len(received), ())

    servicer = SchedulerServicer(submit, resume, info)
    server = ServiceServer(SCHEDULER_NAME, address)
    await server.start()
    await server.attach(lambda handlers: add_SchedulerServiceServicer_to_server(servicer, handlers))
    async with open_channel(address) as channel:
        client = SchedulerClient(channel)
        stream = client.generate(greedy_request("r"))
        delta = asyncio.ensure_future(anext(stream))
        await entered.wait()
        servicer.drain()
        stop = asyncio.create_task(server.stop(30))
        with pytest.raises(ServiceUnavailableError):
            await ask_until_refused(client)
        release.set()
        assert (await delta).start == 7
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await stop


async def ask_until_refused(client: SchedulerClient) -> None:
    while True:
        await client.get_info()


async def test_the_end_of_a_watched_task_ends_the_process_with_its_error(address: str) -> None:
    async def fail() -> None:
        raise ConfigurationError("the loop cannot go on")

    has_closed = []

    @asynccontextmanager
    async def load() -> AsyncIterator[Served]:
        try:
            yield Served(
                lambda handlers: add_verifier(FakeVerifier(), handlers), watched=[asyncio.create_task(fail())]
            )
        finally:
            has_closed.append(True)

    with pytest.raises(ConfigurationError, match="cannot go on"):
        await serve(VERIFIER_NAME, address, load, grace_s=0)
    assert has_closed


async def test_a_failed_load_leaves_nothing_listening(address: str) -> None:
    @asynccontextmanager
    async def load() -> AsyncIterator[Served]:
        raise ConfigurationError("no such model")
        yield

    with pytest.raises(ConfigurationError, match="no such model"):
        await serve(VERIFIER_NAME, address, load)
    async with open_channel(address) as channel:
        with pytest.raises(ServiceUnavailableError):
            await VerifierClient(channel).get_info()
