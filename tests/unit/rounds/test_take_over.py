"""One scheduler goes on with what another began: over a shared store and verifier, without processes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from loop_rig import Rig, read

from dspark.decoding.types import FinishReason, GenerationRequest, OpenRequest, SamplingParams, TokenDelta
from dspark.errors import ServiceUnavailableError, StaleEpochError, UnknownRequestError
from dspark.rounds.loop import RoundLoop
from dspark.rounds.stored import StoredRequest, output_after_loss
from tests.fakes import FakeStore, FakeVerifier, continuation, greedy_request

pytestmark = pytest.mark.timeout(20)
PROMPT = (1, 2, 3)
WHOLE = continuation(PROMPT, 40)
LATER = 1 << 20


def remember(store: FakeStore, output: list[int], request: GenerationRequest | None = None) -> None:
    """What a scheduler that was killed has left in the store."""
    store.create(request or greedy_request("r", PROMPT, 40), 1, output)


async def rest(loop: RoundLoop, received: list[int]) -> list[TokenDelta]:
    return [delta async for delta in loop.resume("r", received)]


def tokens_of(deltas: list[TokenDelta], start: int) -> list[int]:
    tokens: list[int] = []
    for delta in deltas:
        assert delta.start == start + len(tokens), "a gap or an overlap"
        tokens.extend(delta.token_ids)
    return tokens


@pytest.mark.parametrize(("num_stored", "num_received"), [(0, 0), (9, 0), (9, 5), (9, 9), (4, 9), (0, 9)])
async def test_the_stream_goes_on_whether_store_or_caller_is_ahead(num_stored, num_received):
    rig = Rig(epoch=LATER)
    remember(rig.store, WHOLE[:num_stored])
    async with rig.running() as loop:
        deltas = await rest(loop, WHOLE[:num_received])
        assert loop.stats.num_resumed == 1
    assert tokens_of(deltas, num_received) == WHOLE[num_received:]
    assert [delta.finish_reason for delta in deltas[-2:]] == [None, FinishReason.LENGTH]
    assert rig.store.outputs["r"] == WHOLE
    assert rig.store.reasons["r"] is FinishReason.LENGTH
    # One prefill of all that was known, then rounds.
    longer = max(num_stored, num_received)
    assert rig.verifier.opened[0].token_ids == (*PROMPT, *WHOLE[:longer])
    assert rig.verifier.opened[0].epoch > LATER


async def test_an_output_that_was_complete_but_not_delivered_needs_no_round():
    rig = Rig(epoch=LATER)
    remember(rig.store, WHOLE)
    async with rig.running() as loop:
        (delta,) = await rest(loop, WHOLE[:36])
        (end,) = await rest(loop, WHOLE)
        assert loop.stats.num_running == loop.stats.num_waiting == 0
    assert (delta.token_ids, delta.finish_reason) == (tuple(WHOLE[36:]), FinishReason.LENGTH)
    assert (end.start, end.token_ids, end.finish_reason) == (40, (), FinishReason.LENGTH)
    assert rig.verifier.opened == []


async def test_a_request_that_ended_with_a_stop_token_ends_so_again():
    rig = Rig(epoch=LATER)
    remember(rig.store, WHOLE[:10], greedy_request("r", PROMPT, 40, stop=(WHOLE[9],)))
    async with rig.running() as loop:
        (delta,) = await rest(loop, WHOLE[:7])
    assert (delta.token_ids, delta.finish_reason) == (tuple(WHOLE[7:10]), FinishReason.STOP)


async def test_a_request_aborted_because_its_caller_was_lost_goes_on():
    rig = Rig(epoch=LATER)
    remember(rig.store, WHOLE[:8])
    rig.store.finish("r", 1, FinishReason.ABORT)
    async with rig.running() as loop:
        assert tokens_of(await rest(loop, WHOLE[:8]), 8) == WHOLE[8:]
    assert rig.store.reasons["r"] is FinishReason.LENGTH


async def test_tokens_that_were_seen_win_over_other_ones_in_the_store():
    rig = Rig(epoch=LATER)
    remember(rig.store, [*WHOLE[:5], 96, 95, 94, 93])
    async with rig.running() as loop:
        assert tokens_of(await rest(loop, WHOLE[:7]), 7) == WHOLE[7:]
    assert rig.store.outputs["r"] == WHOLE


def test_tokens_without_their_log_probabilities_are_not_delivered():
    request = greedy_request("r", PROMPT)
    asked = replace(request, sampling=replace(request.sampling, num_logprobs=2))
    assert output_after_loss(StoredRequest(request, 1, (4, 5, 6)), [4]) == (4, 5, 6)
    assert output_after_loss(StoredRequest(asked, 1, (4, 5, 6)), [4]) == (4,)


async def test_a_request_of_which_nothing_was_kept_is_unknown():
    rig = Rig(epoch=LATER)
    async with rig.running() as loop:
        with pytest.raises(UnknownRequestError, match="r is not in the store"):
            await rest(loop, [])


async def test_without_a_store_every_request_is_unknown():
    loop = RoundLoop(None, FakeVerifier(), planner=Rig().loop._planner)
    with pytest.raises(UnknownRequestError):
        await rest(loop, [])


async def test_a_store_that_is_away_is_worth_another_attempt():
    rig = Rig(epoch=LATER)
    remember(rig.store, WHOLE[:5])
    rig.store.is_healthy = False
    async with rig.running() as loop:
        with pytest.raises(ServiceUnavailableError):
            await rest(loop, [])
        rig.store.is_healthy = True
        assert tokens_of(await rest(loop, []), 0) == WHOLE


async def test_the_old_owner_ends_at_once_and_frees_nothing_of_the_new_one():
    old = Rig(epoch=1)
    async with old.running() as loop:
        stream = loop.submit(greedy_request("r", PROMPT, 300))
        received = list((await anext(stream)).token_ids)
        store = old.store.for_another_owner()
        new = Rig(verifier=old.verifier, store=store, has_drafter=False, epoch=LATER)
        async with new.running() as other:
            resumed = other.resume("r", received)
            received.extend((await anext(resumed)).token_ids)
            with pytest.raises(StaleEpochError, match="taken over"):
                async for _ in stream:
                    pass
            await old.settle()
            assert loop.stats.num_running == 0
            assert "r" in old.verifier.held
            async for delta in resumed:
                received.extend(delta.token_ids)
    assert received == continuation(PROMPT, 300)


async def test_the_verifier_tells_an_owner_that_it_is_stale_even_where_the_store_does_not():
    rig = Rig(epoch=1)
    await rig.verifier.open(OpenRequest("r", LATER, PROMPT, len(PROMPT), SamplingParams()))
    async with rig.running() as loop:
        with pytest.raises(StaleEpochError, match="taken over"):
            await read(loop.submit(greedy_request("r", PROMPT)))
    assert rig.verifier.held["r"].epoch == LATER
    assert "r" not in rig.store.reasons


async def test_a_caller_that_lost_its_connection_resumes_at_the_same_scheduler():
    rig = Rig(epoch=1)
    async with rig.running() as loop:
        stream = loop.submit(greedy_request("r", PROMPT, 40))
        received = list((await anext(stream)).token_ids)
        with pytest.raises(ServiceUnavailableError, match="being freed"):
            await rest(loop, received)
        await rig.settle()
        assert tokens_of(await rest(loop, received), len(received)) == WHOLE[len(received) :]


async def test_resumed_requests_were_admitted_once_and_find_room_in_a_full_queue():
    rig = Rig(epoch=LATER, max_running=1, max_waiting=0)
    remember(rig.store, WHOLE[:5])
    async with rig.running() as loop:
        first = loop.submit(greedy_request("first", (7,), 60))
        await anext(first)
        resumed = asyncio.create_task(rest(loop, WHOLE[:5]))
        await read_all(first)
        assert tokens_of(await resumed, 5) == WHOLE[5:]


async def read_all(stream) -> None:
    async for _ in stream:
        pass


async def test_giving_a_resumed_request_up_frees_it():
    rig = Rig(epoch=LATER)
    remember(rig.store, WHOLE[:5], greedy_request("r", PROMPT, 390))
    async with rig.running() as loop:
        resumed = loop.resume("r", WHOLE[:5])
        await anext(resumed)
        await resumed.aclose()
        await rig.settle()
        assert rig.verifier.num_used_pages == 0
    assert rig.store.reasons["r"] is FinishReason.ABORT
