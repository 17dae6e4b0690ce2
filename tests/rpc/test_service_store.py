"""The store against a real server: compare-and-set, fences, times to live, and every way it can be away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis

from dspark.decoding.types import FinishReason
from dspark.errors import ConfigurationError
from dspark.rounds.loop import RoundLoop
from dspark.rounds.planner import FixedPlanner
from services.scheduler.store import RedisStore
from services.scheduler.store_client import open_store_client
from services.scheduler.store_record import StoreConfig
from services.scheduler.store_schema import (
    COMMIT_SCRIPT,
    CREATE_SCRIPT,
    WriteResult,
    epoch_text,
    owner_epoch,
    pack_tokens,
    request_keys,
    unpack_tokens,
)
from tests.fakes import FakeVerifier, continuation, greedy_request
from tests.rpc.rpc_fakes import running, until
from tests.rpc.store_server import StoreServer

PROMPT = (1, 2, 3)
OWNER, LATER = owner_epoch(1_800_000_000_000), owner_epoch(1_800_000_000_001)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoreServer]:
    server = StoreServer(tmp_path)
    server.start()
    yield server
    server.kill()


@asynccontextmanager
async def store_on(server: StoreServer, **options):
    store = RedisStore(open_store_client(server.url), now=time.monotonic, **options)
    async with running(store.run()):
        try:
            yield store
        finally:
            await store.close()


def state_of(server: StoreServer, request_id: str = "r") -> dict[str, str]:
    with server.client() as client:
        fields = client.hgetall(request_keys(request_id)[0])
    return {name.decode(): value.decode() for name, value in fields.items()}


def tokens_of(server: StoreServer, request_id: str = "r") -> tuple[int, ...]:
    with server.client() as client:
        return unpack_tokens(client.get(request_keys(request_id)[1]) or b"")


def events_of(server: StoreServer, request_id: str = "r") -> list[tuple[str, int, tuple[int, ...]]]:
    with server.client() as client:
        entries = client.xrange(request_keys(request_id)[2])
    return [
        (entry_id.decode(), int(fields.get(b"start", -1)), unpack_tokens(fields.get(b"tokens", b"")))
        for entry_id, fields in entries
    ]


class Scripts:
    """The two scripts, called by hand."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def create(self, epoch: int, output: tuple[int, ...] = ()) -> WriteResult:
        packed = pack_tokens(output)
        return self._call(
            CREATE_SCRIPT,
            *(epoch_text(epoch), "{}", len(PROMPT), len(output)),
            *(pack_tokens(PROMPT) + packed, packed, "", 60_000),
        )

    def commit(self, epoch: int, offset: int, tokens: tuple[int, ...], finish: str = "") -> WriteResult:
        return self._call(
            COMMIT_SCRIPT,
            *(epoch_text(epoch), len(PROMPT) + offset, len(tokens), pack_tokens(tokens), finish, 60_000, 100),
        )

    def _call(self, script: str, *arguments: str | int | bytes) -> WriteResult:
        reply = self._client.eval(script, 3, *request_keys("r"), *arguments)
        return WriteResult(reply[0])


@pytest.fixture
def scripts(server: StoreServer) -> Iterator[Scripts]:
    with server.client() as client:
        yield Scripts(client)


def test_a_commit_appends_at_its_base_only(server: StoreServer, scripts: Scripts) -> None:
    assert scripts.commit(1, 0, (9,)) is WriteResult.MISSING
    assert scripts.create(1) is WriteResult.OK
    assert scripts.commit(1, 0, (10, 11)) is WriteResult.OK
    assert scripts.commit(1, 3, (12,)) is WriteResult.CONFLICT
    assert scripts.commit(1, 1, (12,)) is WriteResult.CONFLICT
    assert scripts.commit(1, 2, (12,)) is WriteResult.OK
    assert tokens_of(server) == (*PROMPT, 10, 11, 12)
    assert state_of(server)["committed_len"] == "6"


def test_the_same_commit_twice_is_applied_once(server: StoreServer, scripts: Scripts) -> None:
    scripts.create(1)
    assert scripts.commit(1, 0, (10, 11)) is WriteResult.OK
    assert scripts.commit(1, 0, (10, 11)) is WriteResult.OK
    assert scripts.commit(1, 1, (11,)) is WriteResult.OK
    assert tokens_of(server) == (*PROMPT, 10, 11)
    assert [entry for entry, _, _ in events_of(server)] == ["2-0"]
    assert scripts.commit(1, 2, (), "stop") is WriteResult.OK
    assert scripts.commit(1, 2, (), "stop") is WriteResult.OK
    assert [entry for entry, _, _ in events_of(server)] == ["2-0", "2-1"]


def test_an_owner_of_the_past_changes_nothing(server: StoreServer, scripts: Scripts) -> None:
    scripts.create(5)
    assert scripts.commit(4, 0, (10,)) is WriteResult.STALE_EPOCH
    assert scripts.create(4) is WriteResult.STALE_EPOCH
    assert scripts.commit(6, 0, (11,)) is WriteResult.OK
    assert scripts.commit(5, 1, (12,)) is WriteResult.STALE_EPOCH
    assert tokens_of(server) == (*PROMPT, 11)


def test_epochs_beyond_the_precision_of_lua_are_told_apart(scripts: Scripts) -> None:
    assert scripts.create(2**60 + 1) is WriteResult.OK
    assert scripts.commit(2**60, 0, (1,)) is WriteResult.STALE_EPOCH
    assert scripts.commit(2**60 + 2, 0, (1,)) is WriteResult.OK


def test_a_request_whose_tokens_were_lost_is_missing(server: StoreServer, scripts: Scripts) -> None:
    scripts.create(1)
    with server.client() as client:
        client.delete(request_keys("r")[1])
    assert scripts.commit(1, 0, (1,)) is WriteResult.MISSING


def test_an_owner_that_starts_later_has_the_higher_epoch() -> None:
    now_ms = 1_800_000_000_000
    assert owner_epoch(now_ms) + 10_000 < owner_epoch(now_ms + 1)
    assert owner_epoch(now_ms + 1000 * 3600 * 24 * 365 * 200) < 2**63


async def test_a_request_is_kept_from_its_prompt_to_its_end(server: StoreServer) -> None:
    async with store_on(server) as store:
        store.create(greedy_request("r", PROMPT, 20, stop=(7,)), 1)
        await until(lambda: bool(state_of(server)))
        assert state_of(server)["phase"] == "running"
        store.commit("r", 1, 0, (10, 11))
        await until(lambda: state_of(server)["committed_len"] == "5")
        store.commit("r", 2, 2, (12,))
        store.finish("r", 2, FinishReason.STOP)
    state = state_of(server)
    assert tokens_of(server) == (*PROMPT, 10, 11, 12)
    assert (state["phase"], state["finish_reason"], state["prompt_len"]) == ("finished", "stop", "3")
    assert state["epoch"] == epoch_text(2)
    params = json.loads(state["params"])
    assert (params["acceptance"], params["max_new_tokens"], params["stop_token_ids"]) == ("greedy", 20, [7])
    assert events_of(server) == [("2-0", 0, (10, 11)), ("3-0", 2, (12,)), ("3-1", -1, ())]


async def test_a_reader_resumes_behind_the_tokens_it_has(server: StoreServer) -> None:
    async with store_on(server) as store:
        store.create(greedy_request("r", PROMPT), 1)
        for start, tokens in ((0, (10, 11)), (2, (12,)), (3, (13, 14))):
            store.commit("r", 1, start, tokens)
            await until(lambda last=tokens[-1]: tokens_of(server)[-1:] == (last,))
    with server.client() as client:
        ((_, entries),) = client.xread({request_keys("r")[2]: "2-0"})
    assert [entry.decode() for entry, _ in entries] == ["3-0", "5-0"]


async def test_every_key_lives_for_a_limited_time_and_a_finished_request_for_a_short_one(
    server: StoreServer,
) -> None:
    config = StoreConfig(running_ttl_s=500, finished_ttl_s=50)
    async with store_on(server, config=config) as store:
        store.create(greedy_request("running", PROMPT), 1)
        store.commit("running", 1, 0, (10,))
        store.create(greedy_request("done", PROMPT), 1)
        store.commit("done", 1, 0, (10,))
        await until(lambda: len(tokens_of(server, "done")) == 4 and len(tokens_of(server, "running")) == 4)
        store.finish("done", 1, FinishReason.LENGTH)
    with server.client() as client:
        for request_id, least, most in (("running", 400, 500), ("done", 0, 50)):
            for key in request_keys(request_id):
                assert least < client.ttl(key) <= most
        assert client.dbsize() == 6


async def test_a_round_is_one_pipeline(server: StoreServer) -> None:
    async with store_on(server) as store:
        for number in range(16):
            store.create(greedy_request(f"r{number}", PROMPT), 1)
        await until(lambda: store.stats.num_writes == 16)
        before = store.stats.num_flushes
        for number in range(16):
            store.commit(f"r{number}", 1, 0, (10, 11, 12))
        await until(lambda: store.stats.num_writes == 32)
        assert store.stats.num_flushes == before + 1


async def test_another_owner_takes_a_request_over(server: StoreServer) -> None:
    lost: list[str] = []
    async with store_on(server) as first, store_on(server) as second:
        first.watch(lost.append)
        request = greedy_request("r", PROMPT)
        first.create(request, OWNER + 1)
        await until(lambda: bool(state_of(server)))
        second.create(request, LATER + 1)
        await until(lambda: state_of(server)["epoch"] == epoch_text(LATER + 1))
        first.commit("r", OWNER + 1, 0, (10,))
        await until(lambda: lost == ["r"])
        first.commit("r", OWNER + 1, 1, (11,))
        second.commit("r", LATER + 1, 0, (20,))
    assert tokens_of(server) == (*PROMPT, 20)
    assert first.stats.num_stale == 1


async def test_a_store_that_was_killed_has_everything_after_its_return(server: StoreServer) -> None:
    async with store_on(server) as store:
        store.create(greedy_request("r", PROMPT), 1)
        store.commit("r", 1, 0, (10,))
        await until(lambda: len(tokens_of(server)) == 4)
        server.kill()
        store.commit("r", 1, 1, (11,))
        await until(lambda: not store.is_healthy)
        store.create(greedy_request("new", PROMPT), 1)
        store.commit("new", 1, 0, (20,))
        store.commit("r", 1, 2, (12,))
        server.start()
        await until(lambda: store.is_healthy)
    assert tokens_of(server) == (*PROMPT, 10, 11, 12)
    assert tokens_of(server, "new") == (*PROMPT, 20)
    assert events_of(server)[-1] == ("3-0", 0, (10, 11, 12))


async def test_a_flushed_store_gets_the_whole_request_again(server: StoreServer) -> None:
    async with store_on(server) as store:
        store.create(greedy_request("r", PROMPT), 1)
        store.commit("r", 1, 0, (10, 11))
        await until(lambda: len(tokens_of(server)) == 5)
        with server.client() as client:
            client.flushall()
            client.script_flush()
        store.commit("r", 1, 2, (12,))
        await until(lambda: len(tokens_of(server)) == 6)
        assert store.is_healthy
    assert tokens_of(server) == (*PROMPT, 10, 11, 12)
    assert store.stats.num_recreated == 1


async def test_a_paused_store_holds_nobody_up(server: StoreServer) -> None:
    async with store_on(server) as store:
        store.create(greedy_request("r", PROMPT), 1)
        await until(lambda: store.is_healthy)
        server.pause()
        store.commit("r", 1, 0, (10,))
        # The loop goes on while the writer waits for its time-out.
        num_turns = 0
        while store.stats.num_failures == 0:
            num_turns += 1
            await asyncio.sleep(0)
        assert num_turns > 100
        store.commit("r", 1, 1, (11,))
        server.go_on()
        await until(lambda: store.is_healthy)
    assert tokens_of(server) == (*PROMPT, 10, 11)


async def test_an_idle_writer_notices_that_the_store_is_gone(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.scheduler.store._PROBE_S", 0.01)
    async with store_on(server) as store:
        await until(lambda: store.is_healthy)
        server.kill()
        await until(lambda: not store.is_healthy)
        assert store.stats.num_failures > 0


async def test_a_store_that_never_comes_costs_a_bounded_memory(tmp_path: Path) -> None:
    away = StoreServer(tmp_path)
    async with store_on(away, config=StoreConfig(max_records=4)) as store:
        for number in range(6):
            store.create(greedy_request(f"r{number}", PROMPT), 1)
            store.commit(f"r{number}", 1, 0, (10,))
        store.finish("r5", 1, FinishReason.ABORT)
        store.create(greedy_request("r6", PROMPT), 1)
        # What was dropped is ignored from then on, and a finished one is dropped first.
        store.commit("r0", 1, 1, (11,))
        assert store.stats.num_dropped == 3
        await until(lambda: store.stats.num_failures > 0)
        away.start()
        await until(lambda: store.is_healthy)
    try:
        assert [bool(state_of(away, f"r{number}")) for number in range(7)] == [
            *(False, False, True, True, True, False, True)
        ]
    finally:
        away.kill()


async def test_a_store_that_refuses_writes_is_unhealthy_and_catches_up(server: StoreServer) -> None:
    with server.client() as client:
        client.config_set("maxmemory", "1")
        async with store_on(server) as store:
            store.create(greedy_request("r", PROMPT), 1)
            await until(lambda: store.stats.num_failures > 0)
            assert not store.is_healthy
            client.config_set("maxmemory", "0")
            await until(lambda: store.is_healthy)
    assert tokens_of(server) == PROMPT


async def test_a_stream_goes_on_while_the_store_is_killed_paused_and_flushed(server: StoreServer) -> None:
    troubles = {20: server.kill, 60: server.start, 100: server.pause, 140: server.go_on, 180: flush(server)}
    target = FakeVerifier()
    target.on_step = lambda num_steps: troubles.pop(num_steps, lambda: None)()
    async with store_on(server) as store:
        loop = RoundLoop(None, target, planner=FixedPlanner(0), store=store)
        async with running(loop.run()):
            await loop.wait_until_ready()
            tokens: list[int] = []
            async for delta in loop.submit(greedy_request("r", PROMPT, 300)):
                tokens.extend(delta.token_ids)
            await until(lambda: state_of(server).get("phase") == "finished")
    assert not troubles
    assert tokens == continuation(PROMPT, 300)
    assert tokens_of(server) == (*PROMPT, *tokens)


def flush(server: StoreServer):
    def flush_all() -> None:
        with server.client() as client:
            client.flushall()

    return flush_all


def test_a_url_that_is_no_store_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="redis_url"):
        open_store_client("postgres://127.0.0.1")
