"""The round loop over fakes that fail: one test for each thing that can go wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from loop_rig import Rig, foreign, read, rest_of

from dspark.decoding.types import DraftBlock, FinishReason
from dspark.errors import (
    ContextTooLongError,
    DeadlineError,
    EngineError,
    ModelMismatchError,
    PeerLostError,
    ServiceUnavailableError,
)
from tests.fakes import FakeVerifier, continuation, greedy_request


async def test_without_a_drafter_decoding_is_plain():
    rig = Rig(has_drafter=False)
    async with rig.running() as loop:
        tokens, _, _ = await read(loop.submit(greedy_request("a")))
        assert loop.stats.counters.num_plain_rounds == 19
    assert tokens == continuation((1, 2, 3), 20)


@pytest.mark.parametrize(
    "error", [ServiceUnavailableError("gone"), DeadlineError("late"), EngineError("nan")]
)
async def test_a_drafter_that_dies_costs_speed_and_is_not_pestered(error):
    rig = Rig(draft_timeout_s=5)

    def die(num_steps: int) -> None:
        rig.drafter.outage = error

    rig.verifier.on_step = die
    async with rig.running() as loop:
        tokens, reason, _ = await read(loop.submit(greedy_request("a", max_new_tokens=50)))
        assert loop.stats.num_draft_failures == 1  # the clock stood still, so it was asked once
        assert not loop.stats.is_drafter_ready
    assert (tokens, reason) == (continuation((1, 2, 3), 50), FinishReason.LENGTH)


async def test_a_drafter_that_dies_within_a_stream_and_comes_back_drafts_again():
    rig = Rig(rounds_before_resync=3)

    def script(num_steps: int) -> None:
        if num_steps == 3:
            rig.drafter.outage = ServiceUnavailableError("killed")
            rig.drafter.restart()
        if num_steps == 20:
            rig.drafter.outage = None
            rig.clock.time_s += 10

    rig.verifier.on_step = script
    async with rig.running() as loop:
        tokens, _, deltas = await read(loop.submit(greedy_request("a", max_new_tokens=90)))
        counters = loop.stats.counters
    assert tokens == continuation((1, 2, 3), 90)
    assert counters.num_reopens == 1  # the features were computed anew
    assert len(deltas[-2].token_ids) == 4, "drafts again"


async def test_a_drafter_that_hangs_costs_one_timeout():
    rig = Rig(draft_timeout_s=0.01)
    async with rig.running() as loop:
        stream = loop.submit(greedy_request("a", max_new_tokens=60))
        await anext(stream)
        rig.drafter.is_hanging = True
        tokens = [delta.token_ids async for delta in stream]
        assert loop.stats.num_draft_failures == 1
    assert [t for ids in tokens for t in ids] == continuation((1, 2, 3), 60)[1:]


async def test_a_block_for_another_base_or_epoch_is_dropped():
    rig = Rig()
    draft = rig.drafter.draft

    async def late(requests):
        return [
            replace(block, base_committed_len=block.base_committed_len - 1) for block in await draft(requests)
        ]

    rig.drafter.draft = late
    async with rig.running() as loop:
        tokens, _, _ = await read(loop.submit(greedy_request("a")))
        assert loop.stats.counters.num_draft_tokens == 0
    assert tokens == continuation((1, 2, 3), 20)


async def test_a_drafter_that_has_nothing_to_propose_is_no_failed_one():
    rig = Rig(rounds_before_resync=3)
    rig.drafter._block = lambda request: DraftBlock(
        request.request_id,
        request.epoch,
        request.base_committed_len,
        np.zeros(0, dtype=np.int32),
        np.zeros(0, dtype=np.float32),
    )
    async with rig.running() as loop:
        tokens, *_ = await read(loop.submit(greedy_request("a", (5, 6, 7), 40)))
    assert tokens == continuation((5, 6, 7), 40)
    assert rig.store.epochs["a"] == 1, "never prefilled anew"
    counters = loop.stats.counters
    assert (counters.num_plain_rounds, counters.num_proposed_tokens) == (39, 0)


async def test_a_restarted_verifier_is_given_all_requests_anew():
    rig = Rig()
    rig.verifier.on_step = lambda num_steps: rig.verifier.restart() if num_steps == 4 else None
    async with rig.running() as loop:
        streams = [loop.submit(greedy_request(f"r{n}", [n, 9], 40)) for n in range(4)]
        results = await asyncio.gather(*map(read, streams))
        assert loop.stats.counters.num_reopens == 4
    for n, (tokens, reason, _) in enumerate(results):
        assert (tokens, reason) == (continuation([n, 9], 40), FinishReason.LENGTH)
    reopened = [request for request in rig.verifier.opened if request.epoch == 2]
    assert len(reopened) == 4
    assert all(request.prompt_len == 2 < len(request.token_ids) for request in reopened)


@pytest.mark.parametrize(
    "error", [ServiceUnavailableError("gone"), DeadlineError("late"), EngineError("nan")]
)
async def test_a_failed_step_is_a_pause(error):
    rig = Rig()
    rig.verifier.step_failures = [None, None, error, None, error, error]
    async with rig.running() as loop:
        before = rig.clock.time_s
        streams = [loop.submit(greedy_request(f"r{n}", [n, 9], 40)) for n in range(3)]
        results = await asyncio.gather(*map(read, streams))
        assert loop.stats.counters.num_step_failures == 3
    assert rig.clock.time_s > before
    for n, (tokens, reason, _) in enumerate(results):
        assert (tokens, reason) == (continuation([n, 9], 40), FinishReason.LENGTH)


async def test_a_verifier_that_stays_away_ends_the_request_with_an_error():
    rig = Rig(patience_s=60)
    async with rig.running() as loop:
        stream = loop.submit(greedy_request("a"))
        first = await anext(stream)
        rig.verifier.outage = ServiceUnavailableError("connection refused")
        gone_s = rig.clock.time_s
        with pytest.raises(ServiceUnavailableError, match="not answered for 60 s: connection refused"):
            await read(rest_of(stream, len(first.token_ids)))
        assert 60 <= rig.clock.time_s - gone_s < 70
        rig.verifier.outage = None
        assert (await read(loop.submit(greedy_request("b"))))[0] == continuation((1, 2, 3), 20)
        await rig.settle()
    assert rig.verifier.held == {}


async def test_a_step_that_always_fails_ends_its_requests_and_no_others():
    rig = Rig(max_engine_errors=3)
    rig.verifier.step_failures = [EngineError("nan in layer 3")] * 3
    async with rig.running() as loop:
        with pytest.raises(EngineError, match="nan in layer 3"):
            await read(loop.submit(greedy_request("poison")))
        assert (await read(loop.submit(greedy_request("b"))))[0] == continuation((1, 2, 3), 20)


async def test_out_of_pages_the_youngest_gives_way_and_continues_later():
    rig = Rig(verifier=FakeVerifier(num_pages=24, page_size=4), prefill_tokens=4)
    async with rig.running() as loop:
        streams = [loop.submit(greedy_request(f"r{n}", [n + 1] * 4, 50)) for n in range(4)]
        results = await asyncio.gather(*map(read, streams))
        await rig.settle()
        counters = loop.stats.counters
    for n, (tokens, reason, _) in enumerate(results):
        assert (tokens, reason) == (continuation([n + 1] * 4, 50), FinishReason.LENGTH)
    assert 0 < counters.num_preemptions < 10, "no thrashing"
    assert "r0" not in {request.request_id for request in rig.verifier.opened if request.epoch > 1}
    assert rig.verifier.held == {}


async def test_pages_that_suffice_for_no_drafts_are_used_plainly():
    # 16 tokens of context in 4 pages: near the end a block would need a fifth page.
    rig = Rig(verifier=FakeVerifier(num_pages=4, page_size=4))
    async with rig.running() as loop:
        tokens, reason, _ = await read(loop.submit(greedy_request("a", [3] * 5, 100)))
    assert (tokens, reason) == (continuation([3] * 5, 11), FinishReason.LENGTH)


async def test_a_request_that_cannot_fit_alone_ends_with_a_clear_error():
    verifier = FakeVerifier(num_pages=8, page_size=4)
    rig = Rig(verifier=verifier)
    async with rig.running() as loop:
        # Somebody else's pages, which this loop cannot free.
        await verifier.open(foreign(12))
        verifier.held["foreign"].num_computed = 12
        with pytest.raises(ContextTooLongError, match="no pages for more"):
            await read(loop.submit(greedy_request("a", [3] * 5, 100)))
        await rig.settle()
    assert set(verifier.held) == {"foreign"}


async def test_closing_the_stream_frees_the_request_within_one_round():
    rig = Rig()
    async with rig.running() as loop:
        stream = loop.submit(greedy_request("a", max_new_tokens=300))
        other = loop.submit(greedy_request("b", max_new_tokens=60))
        await anext(stream)
        num_steps = len(rig.verifier.steps)
        await stream.aclose()
        tokens, _, _ = await read(other)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await rig.settle()
    late = [step for step in rig.verifier.steps[num_steps:] if any(item.request_id == "a" for item in step)]
    assert len(late) <= 1
    assert tokens == continuation((1, 2, 3), 60)
    assert rig.verifier.held == {}
    assert "a" in rig.drafter.closed
    assert rig.store.reasons["a"] is FinishReason.ABORT


async def test_closing_wakes_a_reader_and_frees_a_request_that_never_ran():
    rig = Rig(max_running=1)
    async with rig.running() as loop:
        running = loop.submit(greedy_request("a", max_new_tokens=40))
        waiting = loop.submit(greedy_request("b"))
        reader = asyncio.create_task(anext(waiting))
        await asyncio.sleep(0)
        await waiting.aclose()
        assert (await reader).finish_reason is FinishReason.ABORT
        await read(running)
    assert {request.request_id for request in rig.verifier.opened} == {"a"}


async def test_a_stale_answer_leads_to_a_fresh_start_from_the_tokens():
    rig = Rig()

    def script(num_steps: int) -> None:
        if num_steps == 3:
            rig.verifier.held["a"].tokens.append(5)

    rig.verifier.on_step = script
    async with rig.running() as loop:
        tokens, _, _ = await read(loop.submit(greedy_request("a")))
        assert loop.stats.counters.num_reopens == 1
    assert tokens == continuation((1, 2, 3), 20)


async def test_a_loop_that_stops_ends_its_streams_and_frees_their_pages():
    rig = Rig()
    async with rig.running() as loop:
        stream = loop.submit(greedy_request("a", max_new_tokens=300))
        await anext(stream)
    with pytest.raises(PeerLostError, match="scheduler stopped"):
        await read(rest_of(stream, 1))
    assert rig.verifier.held == {}
    assert rig.drafter.closed == {"a"}


async def test_a_drafter_for_another_vocabulary_stops_the_loop():
    rig = Rig()
    rig.drafter.info = replace(rig.drafter.info, vocab_size=98)
    with pytest.raises(ModelMismatchError, match="vocabulary of 98"):
        await rig.loop.run()


async def test_an_idle_loop_runs_nothing():
    rig = Rig()
    async with rig.running() as loop:
        await read(loop.submit(greedy_request("a")))
        await rig.settle()
        num_steps, num_drafts = len(rig.verifier.steps), len(rig.drafter.calls)
        for _ in range(200):
            await asyncio.sleep(0)
        assert (len(rig.verifier.steps), len(rig.drafter.calls)) == (num_steps, num_drafts)


async def test_observers_are_told_about_every_round():
    rig = Rig()
    reports = []

    class Observer:
        def on_round(self, report):
            reports.append(report)

    rig.loop.tell(Observer())
    async with rig.running() as loop:
        await read(loop.submit(greedy_request("a", max_new_tokens=13)))
        await rig.settle()
        assert len(reports) == loop.stats.counters.num_rounds == 4
    assert [report.num_prefill_tokens for report in reports] == [3, 0, 0, 0]
    assert [report.load.num_keys for report in reports] == [3, 4, 8, 12], "tokens held before the round"
    assert [report.load.context_len for report in reports] == [2, 4, 8, 12]
    assert sum(entry.num_committed for report in reports for entry in report.verified) == 12
