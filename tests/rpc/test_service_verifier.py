"""The verifier over a real socket."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dspark.decoding.types import OpenRequest, PrefillItem, StepResult, VerifyItem, VerifyStatus
from dspark.errors import ContextTooLongError, StaleEpochError
from dspark.rounds.local import LocalVerifier
from services.runtime.channel import open_channel
from services.runtime.idle import IdleRequests
from services.verifier.client import VerifierClient
from tests.fakes import FakeClock, FakeVerifier, continuation, greedy_request
from tests.rpc.rpc_fakes import running, socket_address, until, verifier_service

PROMPT = (5, 6, 7, 8)


def opening(request_id: str = "r", epoch: int = 1) -> OpenRequest:
    return OpenRequest(request_id, epoch, PROMPT, len(PROMPT), greedy_request("r").sampling)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return socket_address(tmp_path, "v")


async def test_a_request_is_opened_prefilled_verified_and_closed(address: str) -> None:
    target = FakeVerifier()
    tokens = continuation(PROMPT, 4)
    async with verifier_service(target, address), open_channel(address) as channel:
        client = VerifierClient(channel)
        assert await client.get_info() == client.info == target.info
        await client.open(opening())
        first = await client.step([PrefillItem("r", 1, 3)])
        assert first.outcomes[0].status is VerifyStatus.PREFILLING
        second = await client.step([PrefillItem("r", 1, 1)])
        assert second.outcomes[0].token_ids == (tokens[0],)
        drafts = np.array([tokens[1], tokens[2] + 1], np.int32)
        third = await client.step([VerifyItem("r", 1, 5, drafts), PrefillItem("nobody", 1, 1)])
        assert third.outcomes[0].num_accepted == 1
        assert third.outcomes[0].token_ids == (tokens[1], tokens[2])
        assert third.outcomes[1].status is VerifyStatus.UNKNOWN
        await client.close(["r", "nobody"])
    assert target.num_used_pages == 0


async def test_an_older_epoch_is_refused(address: str) -> None:
    async with verifier_service(FakeVerifier(), address), open_channel(address) as channel:
        client = VerifierClient(channel)
        await client.open(opening(epoch=2))
        with pytest.raises(StaleEpochError):
            await client.open(opening(epoch=1))


async def test_the_field_of_a_refused_request_survives(address: str) -> None:
    target = FakeVerifier()
    target.outage = ContextTooLongError("too long", "token_ids")
    async with verifier_service(target, address), open_channel(address) as channel:
        with pytest.raises(ContextTooLongError) as caught:
            await VerifierClient(channel).open(opening())
    assert caught.value.field == "token_ids"


async def test_requests_of_a_vanished_scheduler_are_freed(address: str) -> None:
    target, clock = FakeVerifier(), FakeClock()
    idle = IdleRequests(0.02, clock.now)
    async with verifier_service(target, address, idle) as servicer, open_channel(address) as channel:
        client = VerifierClient(channel)
        await client.open(opening("gone"))
        await client.open(opening("used"))
        async with running(idle.sweep(servicer.close)):
            clock.time_s += 1
            await client.step([PrefillItem("used", 1, 4)])
            await until(lambda: "gone" not in target.held)
            assert "used" in target.held


async def test_a_step_that_waits_for_its_turn_is_dropped_with_its_caller(address: str) -> None:
    entered, release = threading.Event(), threading.Event()
    result = StepResult((), 0, 1, 5)
    steps: list[int] = []

    class Engine:
        info = FakeVerifier().info

        def step(self, items):
            entered.set()
            release.wait(20)
            steps.append(len(items))
            return replace(result, batch_tokens=len(items)), []

    target = LocalVerifier(Engine())
    async with verifier_service(target, address), open_channel(address) as channel:
        client = VerifierClient(channel)
        first = asyncio.create_task(client.step([PrefillItem("a", 1, 1)]))
        await asyncio.to_thread(entered.wait, 10)
        second = asyncio.create_task(client.step([PrefillItem("a", 1, 1)] * 2))
        third = asyncio.create_task(client.step([PrefillItem("a", 1, 1)] * 3))
        await client.get_info()
        second.cancel()
        # An answer after the cancellation: the server has seen it.
        await client.get_info()
        await asyncio.wait({second})
        await client.get_info()
        release.set()
        assert (await first).batch_tokens == 1
        assert (await third).batch_tokens == 3
    target.shutdown()
    assert steps == [1, 3]
