"""The services as processes: what they say at start, how they end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dspark.decoding.types import VerifierInfo
from services.runtime.channel import open_channel
from services.scheduler.client import SchedulerClient
from tests.fakes import FakeVerifier, continuation, greedy_request
from tests.rpc.rpc_fakes import FakeDraftEngine, drafter_service, socket_address, verifier_service
from tests.rpc.store_server import StoreServer


@contextmanager
def process(service: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, **{f"{service.upper()}_{name}": value for name, value in settings.items()}}
    child = subprocess.Popen(
        [sys.executable, "-m", f"services.{service}"], env=env, stderr=subprocess.PIPE, text=True
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        assert child.stderr is not None
        child.stderr.close()


def run_to_end(service: str, **settings: str) -> tuple[int, str]:
    with process(service, **settings) as child:
        _, output = child.communicate(timeout=50)
        return child.returncode, output.splitlines()[-1]


def test_wrong_settings_end_the_process_with_one_sentence() -> None:
    code, last_line = run_to_end("scheduler", LISTEN="nowhere", VERIFIER_ADDRESS="unix:v", MAX_RUNNING="0")
    assert code == os.EX_CONFIG
    assert re.match(
        r"SCHEDULER_LISTEN: .*write unix:.*; SCHEDULER_MAX_RUNNING: .*greater than or equal to 1", last_line
    )


def test_a_misspelt_setting_ends_the_process_with_one_sentence() -> None:
    code, last_line = run_to_end("scheduler", LISTEN="unix:s", VERIFIER_ADDRESS="unix:v", POLIZY="off")
    assert code == os.EX_CONFIG
    assert last_line == "there is no setting polizy (SCHEDULER_POLIZY); the nearest one is policy"


@pytest.mark.parametrize("service", ["drafter", "verifier"])
def test_a_model_that_is_not_there_ends_the_process_with_one_sentence(service: str, tmp_path: Path) -> None:
    address = socket_address(tmp_path, "x")
    missing = str(tmp_path / "missing")
    code, last_line = run_to_end(service, LISTEN=address, TARGET=missing, DRAFTER=missing)
    assert code == os.EX_CONFIG, last_line
    assert "missing" in last_line


def test_a_verifier_that_never_comes_ends_the_scheduler_in_time(tmp_path: Path) -> None:
    code, last_line = run_to_end(
        "scheduler",
        LISTEN=socket_address(tmp_path, "s"),
        VERIFIER_ADDRESS=socket_address(tmp_path, "v"),
        VERIFIER_WAIT_S="0.2",
    )
    assert code == 1
    assert "the verifier at" in last_line


class Output:
    """Lines of a process, read by a thread so that its pipe never fills."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self.is_ready = threading.Event()
        self._child = child
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self.lines.append(line)
            # As `dspark up` looks for it.
            if re.search(r"(^|[\s:\]])ready\b(?! in)", line):
                self.is_ready.set()

    def join(self) -> str:
        self._thread.join()
        return "".join(self.lines)


async def test_a_scheduler_serves_with_a_store_and_ends_softly(tmp_path: Path) -> None:
    store = StoreServer(tmp_path)
    store.start()
    target = FakeVerifier()
    verifier_address, address = socket_address(tmp_path, "v"), socket_address(tmp_path, "s")
    try:
        async with verifier_service(target, verifier_address):
            with process(
                "scheduler", LISTEN=address, VERIFIER_ADDRESS=verifier_address, REDIS_URL=store.url
            ) as child:
                output = Output(child)
                assert await asyncio.to_thread(output.is_ready.wait, 40), output.lines
                async with open_channel(address) as channel:
                    client = SchedulerClient(channel)
                    request = greedy_request("r", (1, 2, 3), 12)
                    tokens = [token async for delta in client.generate(request) for token in delta.token_ids]
                    assert tokens == continuation((1, 2, 3), 12)
                    assert (await client.get_info()).is_store_healthy
                    child.send_signal(signal.SIGTERM)
                    assert await asyncio.to_thread(child.wait, 20) == 0
                log = output.join()
        assert log.count(" ready ") == 1
        with store.client() as redis_client:
            assert redis_client.hget("dspark:{r}:state", "finish_reason") == b"length"
    finally:
        store.kill()


async def test_a_drafter_of_another_vocabulary_ends_the_scheduler_with_one_sentence(tmp_path: Path) -> None:
    target = FakeVerifier()
    engine = FakeDraftEngine(target)
    target.info = VerifierInfo("other-target", 50, 400, 4, 100, (0,), step_cost=target.info.step_cost)
    addresses = {name: socket_address(tmp_path, name) for name in "vds"}
    async with verifier_service(target, addresses["v"]), drafter_service(engine, addresses["d"]):
        code, last_line = await asyncio.to_thread(
            run_to_end,
            "scheduler",
            LISTEN=addresses["s"],
            VERIFIER_ADDRESS=addresses["v"],
            DRAFTER_ADDRESS=addresses["d"],
        )
    assert code == os.EX_CONFIG
    assert "fake-drafter" in last_line
    assert "other-target" in last_line
