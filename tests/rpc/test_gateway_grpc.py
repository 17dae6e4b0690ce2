"""The gateway over the scheduler's real client and a real gRPC server, in process and as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from dspark.api.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from dspark.decoding.types import TokenDelta
from dspark.errors import EngineError, InvalidRequestError, OverloadedError
from gateway.app import create_app
from gateway.edge import Edge, SchedulerView
from services.runtime.channel import open_channel
from services.runtime.server import ServiceServer
from services.scheduler.client import SchedulerClient
from services.scheduler.info import SchedulerInfo, SpeculationCounters
from services.scheduler.servicer import SERVICE_NAME, SchedulerServicer
from tests.unit.gateway.gateway_fakes import EOS, FakeBackend, make_edge, says, write_model

HELLO = [{"role": "user", "content": "hi"}]
FIRST = TokenDelta("r", 0, (72, 105))
INFO = SchedulerInfo(
    target_name="tiny",
    drafter_name="tiny-dspark",
    gamma=7,
    max_context_len=2048,
    eos_token_ids=(EOS,),
    vocab_size=259,
    is_verifier_ready=True,
    is_drafter_ready=True,
    is_store_healthy=True,
    counters=SpeculationCounters(num_drafts=4, num_accepted_tokens_per_pos=(3, 1), num_pages=8),
)


@asynccontextmanager
async def scheduler(backend: FakeBackend, address: str) -> AsyncIterator[None]:
    """The scheduler's real server and servicer around a script."""
    server = ServiceServer(SERVICE_NAME, address)
    await server.start()
    servicer = SchedulerServicer(backend.generate, backend.resume, lambda: INFO)
    await server.attach(lambda handlers: add_SchedulerServiceServicer_to_server(servicer, handlers))
    try:
        yield
    finally:
        await server.stop(0)


@asynccontextmanager
async def client_over_grpc(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with open_channel(address) as channel:
        backend = SchedulerClient(channel)
        model = make_edge(FakeBackend(says(""))).model
        transport = httpx.ASGITransport(create_app(Edge(model, backend, SchedulerView(backend))))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{os.path.relpath(tmp_path / 's')}"


async def test_tokens_round_statistics_and_log_probabilities_cross_the_wire(address: str) -> None:
    async with scheduler(FakeBackend(says("Héllo", 1, 4)), address), client_over_grpc(address) as client:
        response = await client.post(
            "/v1/chat/completions", json={"messages": HELLO, "logprobs": True, "top_logprobs": 2}
        )
        metrics = await client.get("/metrics")
    body = response.json()
    assert body["choices"][0]["message"]["content"] == "Héllo"
    entries = body["choices"][0]["logprobs"]["content"]
    assert [e["logprob"] for e in entries] == [-0.5 - k for k in range(7)]
    assert body["metrics"]["speculative_decoding"]["acceptance_histogram"][3] == 1
    assert 'dspark:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 1.0' in metrics.text


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [
        (OverloadedError("The queue is full.", retry_after_s=4.5), 429, None),
        (InvalidRequestError("top_k is too large.", field="top_k"), 400, "top_k"),
        (EngineError("The forward pass failed."), 500, None),
    ],
)
async def test_errors_of_the_scheduler_keep_class_field_and_delay(
    address: str, error: Exception, status: int, param: str | None
) -> None:
    async with scheduler(FakeBackend(lambda r: [error]), address), client_over_grpc(address) as client:
        response = await client.post("/v1/chat/completions", json={"messages": HELLO, "stream": True})
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
    assert response.headers.get("retry-after") == ("5" if status == 429 else None)


async def test_a_scheduler_that_is_not_there_is_503_then_served_when_it_comes(address: str) -> None:
    async with client_over_grpc(address) as client:
        response = await client.post("/v1/chat/completions", json={"messages": HELLO})
        health = await client.get("/health")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        async with scheduler(FakeBackend(says("back")), address):
            while (await client.get("/health")).status_code != 200:
                pass
            response = await client.post("/v1/chat/completions", json={"messages": HELLO})
    assert response.json()["choices"][0]["message"]["content"] == "back"


async def test_a_stop_string_frees_the_request_at_the_scheduler(address: str) -> None:
    forever = asyncio.Event()
    backend = FakeBackend(lambda r: [FIRST, forever])
    async with scheduler(backend, address), client_over_grpc(address) as client:
        response = await client.post("/v1/chat/completions", json={"messages": HELLO, "stop": "i"})
        await backend.all_closed()
    assert response.json()["choices"][0]["message"]["content"] == "H"


async def test_a_cancelled_request_is_freed_at_the_scheduler(address: str) -> None:
    forever = asyncio.Event()
    backend = FakeBackend(lambda r: [FIRST, forever])
    async with scheduler(backend, address), client_over_grpc(address) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json={"messages": HELLO}))
        await backend.opened.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await backend.all_closed()
    assert backend.num_open == 0


async def test_the_process_serves_says_ready_and_ends_cleanly(address: str, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "GATEWAY_PORT": "0",
        "GATEWAY_SCHEDULER_ADDRESS": address,
        "GATEWAY_TARGET": str(write_model(tmp_path)),
        "GATEWAY_MODEL_NAME": "tiny",
    }
    async with scheduler(FakeBackend(says("Hello")), address):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", env=env, stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        try:
            while "ready http" not in (line := (await process.stderr.readline()).decode()):
                assert line, "the process ended before it was ready"
            url = line.split("ready ")[1].split()[0]
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                response = await client.post(
                    "/v1/chat/completions", json={"messages": HELLO, "model": "tiny"}
                )
        finally:
            process.send_signal(signal.SIGTERM)
            code = await process.wait()
    assert response.json()["choices"][0]["message"]["content"] == "Hello"
    assert code == 0


def test_a_process_with_a_wrong_target_ends_with_one_sentence(tmp_path: Path) -> None:
    env = {**os.environ, "GATEWAY_TARGET": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "gateway"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == os.EX_CONFIG
    last = done.stderr.splitlines()[-1]
    assert "tokenizer.json does not exist" in last
    assert "Traceback" not in done.stderr


def test_the_gateway_never_loads_torch_or_transformers() -> None:
    probe = (
        "import sys, gateway.__main__;"
        "print([m for m in ('torch', 'transformers', 'redis') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
