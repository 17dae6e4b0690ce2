"""The drafter over a real socket: waiting for features, the feature stream, its end and its return."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from dspark.decoding.types import DraftRequest, FeatureBatch, OpenRequest
from dspark.errors import DeadlineError, EngineError, InvalidRequestError, ModelMismatchError
from services.drafter.client import DrafterClient
from services.runtime.channel import open_channel
from services.verifier.feature_push import FeaturePusher
from tests.fakes import FakeVerifier, greedy_request
from tests.feature_batches import feature_batch
from tests.rpc.rpc_fakes import FakeDraftEngine, drafter_service, feature_pusher, socket_address, until

PROMPT = (5, 6, 7, 8)
SAMPLING = greedy_request("r").sampling


@pytest.fixture
def address(tmp_path: Path) -> str:
    return socket_address(tmp_path, "d")


@pytest.fixture
async def engine() -> FakeDraftEngine:
    """With requests a and b opened at its target."""
    target = FakeVerifier()
    for request_id in "ab":
        await target.open(OpenRequest(request_id, 1, PROMPT, len(PROMPT), SAMPLING))
    return FakeDraftEngine(target)


def features(request_id: str, *, start: int = 0, end: int = 3) -> FeatureBatch:
    return feature_batch(request_id, 1, start, np.ones((end - start, 8), np.uint16))


def ask(request_id: str, *, epoch: int = 1) -> DraftRequest:
    return DraftRequest(request_id, epoch, len(PROMPT), PROMPT[-1], SAMPLING, 4)


async def test_blocks_come_for_the_requests_that_are_complete(address: str, engine: FakeDraftEngine) -> None:
    async with drafter_service(engine, address, feature_wait_s=0), open_channel(address) as channel:
        client = DrafterClient(channel)
        engine.push(features("a"))
        blocks = await client.draft([ask("a"), ask("b")])
    assert [block.request_id for block in blocks] == ["a"]
    assert len(blocks[0].token_ids) == len(blocks[0].confidence) == 4


async def test_the_info_of_the_engine_is_told_and_remembered(address: str, engine: FakeDraftEngine) -> None:
    async with drafter_service(engine, address), open_channel(address) as channel:
        client = DrafterClient(channel)
        assert await client.get_info() == client.info == engine.info


async def test_a_draft_waits_for_features_on_their_way(address: str, engine: FakeDraftEngine) -> None:
    async with (
        drafter_service(engine, address, feature_wait_s=30),
        open_channel(address) as channel,
        feature_pusher(address) as pusher,
    ):
        draft = asyncio.create_task(DrafterClient(channel).draft([ask("a"), ask("b")]))
        pusher.push([features("a")])
        await until(lambda: engine.knows("a") == 3)
        assert not draft.done()
        pusher.push([features("b")])
        assert {block.request_id for block in await draft} == {"a", "b"}


async def test_lost_features_hold_up_one_draft_only(address: str, engine: FakeDraftEngine) -> None:
    async with drafter_service(engine, address, feature_wait_s=0.05) as servicer:
        servicer._feature_wait_s = 0.05
        async with open_channel(address) as channel:
            client = DrafterClient(channel)
            engine.push(features("a"))
            assert len(await client.draft([ask("a"), ask("b")])) == 1
            # From here on a wait would last longer than the test may.
            servicer._feature_wait_s = 1000
            assert len(await client.draft([ask("a"), ask("b")])) == 1


async def test_nobody_waits_for_a_gap(address: str, engine: FakeDraftEngine) -> None:
    async with (
        drafter_service(engine, address, feature_wait_s=1000),
        open_channel(address) as channel,
        feature_pusher(address) as pusher,
    ):
        pusher.push([features("a", start=2), features("b")])
        await until(lambda: engine.knows("b") == 3)
        blocks = await DrafterClient(channel).draft([ask("a"), ask("b")])
    assert [block.request_id for block in blocks] == ["b"]


async def test_closed_requests_are_forgotten(address: str, engine: FakeDraftEngine) -> None:
    async with drafter_service(engine, address, feature_wait_s=0), open_channel(address) as channel:
        engine.push(features("a"))
        await DrafterClient(channel).close(["a", "unknown"])
    assert engine.knows("a") == 0
    assert engine.closed == {"a", "unknown"}


async def test_a_slow_draft_ends_with_its_deadline(address: str, engine: FakeDraftEngine) -> None:
    release = threading.Event()
    engine.on_draft = lambda: release.wait(20)
    engine.push(features("a"))
    async with drafter_service(engine, address), open_channel(address) as channel:
        with pytest.raises(DeadlineError):
            await DrafterClient(channel, draft_timeout_s=0.05).draft([ask("a")])
        release.set()


async def test_a_failed_forward_is_an_engine_error(address: str, engine: FakeDraftEngine) -> None:
    def fail() -> None:
        raise RuntimeError("bad matmul")

    engine.on_draft = fail
    engine.push(features("a"))
    async with drafter_service(engine, address), open_channel(address) as channel:
        with pytest.raises(EngineError, match="bad matmul"):
            await DrafterClient(channel).draft([ask("a")])


async def test_features_flow_again_after_the_drafter_restarted(address: str, engine: FakeDraftEngine) -> None:
    async with feature_pusher(address) as pusher:
        # Nobody listens yet: what is pushed waits.
        pusher.push([features("a", end=2)])
        async with drafter_service(engine, address):
            await until(lambda: engine.knows("a") == 2)
        engine.restart()
        pusher.push([features("a", end=1)])
        async with drafter_service(engine, address):
            # The first message after the break may be lost with it, those after the reconnect are not.
            await until(lambda: engine.knows("a") > 0 or not pusher._queue)
            pusher.push([features("b")])
            await until(lambda: engine.knows("b") == 3)
    assert pusher.num_dropped == 0


async def test_a_drafter_that_is_away_costs_memory_up_to_the_bound_and_no_time(address: str) -> None:
    one = features("a")
    async with feature_pusher(address, max_queued_bytes=3 * one.num_bytes) as pusher:
        for position in range(10):
            pusher.push([features("a", start=position, end=position + 3)])
        await until(lambda: pusher.num_dropped == 7)
        assert [group.batches[0].start for group in pusher._queue] == [7, 8, 9]
        assert pusher._queued_bytes == 3 * one.num_bytes


async def test_large_features_travel_in_several_messages(address: str, engine: FakeDraftEngine) -> None:
    engine_rows = 3000
    batch = feature_batch("a", 1, 0, np.zeros((engine_rows, 4096), np.uint16))
    async with drafter_service(engine, address), feature_pusher(address) as pusher:
        pusher.push([batch, features("b")])
        await until(lambda: engine.knows("a") == engine_rows and engine.knows("b") == 3)


async def test_features_may_be_pushed_by_another_thread(address: str, engine: FakeDraftEngine) -> None:
    async with drafter_service(engine, address), feature_pusher(address) as pusher:
        await asyncio.to_thread(pusher.push, [features("a")])
        await until(lambda: engine.knows("a") == 3)


async def test_a_foreign_drafter_gets_no_features(address: str, engine: FakeDraftEngine, caplog) -> None:
    def refuse(info: object) -> None:
        raise ModelMismatchError("it reads other layers")

    async with drafter_service(engine, address), feature_pusher(address, check=refuse) as pusher:
        pusher.push([features("a")])
        await until(lambda: "it reads other layers" in caplog.text)
    assert engine.knows("a") == 0


async def test_an_engine_that_refuses_features_is_tried_again(
    address: str, engine: FakeDraftEngine, caplog
) -> None:
    engine.push_error = InvalidRequestError("features of the wrong width", "features")
    async with drafter_service(engine, address), feature_pusher(address) as pusher:
        pusher.push([features("a")])
        await until(lambda: "features of the wrong width" in caplog.text)
        engine.push_error = None
        await send_until_known(pusher, engine)


async def send_until_known(pusher: FeaturePusher, engine: FakeDraftEngine) -> None:
    while engine.knows("b") == 0:
        pusher.push([features("b")])
        await asyncio.sleep(0.01)
