"""Taking requests over in a real store: all it takes to go on comes back, the old owner is fenced off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.types import Acceptance, FinishReason, GenerationRequest, SamplingParams, StopParams
from dspark.errors import ServiceUnavailableError
from services.scheduler.store_schema import epoch_after, epoch_text, owner_epoch, request_keys
from tests.fakes import greedy_request
from tests.rpc.rpc_fakes import until
from tests.rpc.store_server import StoreServer
from tests.rpc.test_service_store import OWNER, PROMPT, state_of, store_on, tokens_of

pytestmark = pytest.mark.timeout(60)
LATER = owner_epoch(1_800_000_000_001)
SAMPLED = GenerationRequest(
    "r",
    PROMPT,
    SamplingParams(
        *(0.7, 0.9, 40, 0.05, 2**64 - 1, Acceptance.COUPLED, 3),
        LogitAdjustments(1.1, -0.2, 0.3, ((4, -100.0), (6, 0.1)), 20, (7, 9)),
    ),
    StopParams(50, frozenset({7, 9})),
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoreServer]:
    server = StoreServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.mark.parametrize("request_", [SAMPLED, greedy_request("r", PROMPT)])
async def test_prompt_parameters_and_output_come_back_with_a_higher_epoch(
    server: StoreServer, request_: GenerationRequest
) -> None:
    async with store_on(server) as first, store_on(server) as second:
        first.create(request_, OWNER + 1)
        first.commit("r", OWNER + 3, 0, (10, 11))
        await until(lambda: len(tokens_of(server)) == 5)
        stored = await second.claim("r", LATER)
    assert stored is not None
    assert (stored.request, stored.output, stored.epoch) == (request_, (10, 11), LATER)
    assert state_of(server)["epoch"] == epoch_text(LATER)


async def test_from_the_claim_on_the_old_owner_writes_nothing_and_learns_it(server: StoreServer) -> None:
    lost: list[str] = []
    async with store_on(server) as first, store_on(server) as second:
        first.watch(lost.append)
        first.create(greedy_request("r", PROMPT), OWNER + 1)
        await until(lambda: bool(state_of(server)))
        stored = await second.claim("r", LATER)
        assert stored is not None
        first.commit("r", OWNER + 1, 0, (10,))
        await until(lambda: lost == ["r"])
        first.finish("r", OWNER + 1, FinishReason.ABORT)
        second.create(stored.request, stored.epoch + 1, [20, 21])
        second.commit("r", stored.epoch + 1, 2, (22,))
    assert tokens_of(server) == (*PROMPT, 20, 21, 22)
    assert state_of(server)["phase"] == "running"


async def test_an_owner_whose_clock_is_behind_takes_over_too(server: StoreServer) -> None:
    async with store_on(server) as first, store_on(server) as second:
        first.create(greedy_request("r", PROMPT), LATER + 5)
        await until(lambda: bool(state_of(server)))
        stored = await second.claim("r", OWNER)
        assert stored is not None
        assert stored.epoch == epoch_after(LATER + 5, OWNER) > LATER + 1000


async def test_a_store_without_the_request_or_with_half_of_it_has_nothing_to_claim(
    server: StoreServer,
) -> None:
    async with store_on(server) as store:
        assert await store.claim("r", OWNER) is None
        store.create(greedy_request("r", PROMPT), OWNER + 1)
        await until(lambda: bool(state_of(server)))
        with server.client() as client:
            client.hset(request_keys("r")[0], "params", "{}")
            assert await store.claim("r", LATER) is None
            client.delete(request_keys("r")[1])
        assert await store.claim("r", LATER) is None


async def test_all_requests_of_a_dead_scheduler_can_be_claimed_at_once(server: StoreServer) -> None:
    names = [f"r{number}" for number in range(64)]
    async with store_on(server) as first, store_on(server) as second:
        for name in names:
            first.create(greedy_request(name, PROMPT), OWNER + 1)
        await until(lambda: first.stats.num_writes == len(names))
        claims = await asyncio.gather(*(second.claim(name, LATER) for name in names))
    assert [claim.request.request_id for claim in claims if claim is not None] == names


async def test_a_dead_store_is_told_apart_from_an_empty_one(server: StoreServer) -> None:
    async with store_on(server) as store:
        server.kill()
        with pytest.raises(ServiceUnavailableError, match="while the store is away"):
            await store.claim("r", OWNER)
