"""The round loop with fakes for its peers: one test for each thing that can go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from dspark.decoding.types import (
    FinishReason,
    OpenRequest,
    PrefillItem,
    SamplingParams,
    TokenDelta,
    VerifyItem,
)
from dspark.errors import (
    ContextTooLongError,
    DeadlineError,
    EngineError,
    InvalidRequestError,
    ModelMismatchError,
    OverloadedError,
    ServiceUnavailableError,
)
from dspark.rounds.config import LoopConfig
from dspark.rounds.loop import RoundLoop
from dspark.rounds.planner import FixedPlanner, planner_of
from dspark.rounds.request import RequestStream
from tests.fakes import FakeClock, FakeDrafter, FakeStore, FakeVerifier, continuation, greedy_request


class Rig:
    """A loop and its fakes."""

    def __init__(self, *, verifier=None, has_drafter=True, planner=None, **config) -> None:
        self.verifier = verifier or FakeVerifier()
        self.drafter = FakeDrafter(self.verifier) if has_drafter else None
        self.store, self.clock = FakeStore(), FakeClock()
        self.loop = RoundLoop(
            self.drafter,
            self.verifier,
            planner=planner or FixedPlanner(4),
            store=self.store,
            config=LoopConfig(**config),
            clock=self.clock,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RoundLoop]:
        task = asyncio.create_task(self.loop.run())
        await self.loop.wait_until_ready()
        try:
            yield self.loop
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def settle(self) -> None:
        """Let the loop do what it has to do after the last request."""
        for _ in range(20):
            await asyncio.sleep(0)


async def read(stream: RequestStream) -> tuple[list[int], FinishReason | None, list[TokenDelta]]:
    """Read a stream to its end and check that its deltas are contiguous."""
    tokens, deltas = [], []
    async for delta in stream:
        assert delta.start == len(tokens), "a gap or an overlap"
        tokens.extend(delta.token_ids)
        deltas.append(delta)
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    return tokens, deltas[-1].finish_reason if deltas else None, deltas


async def test_the_output_is_that_of_plain_decoding_and_comes_in_blocks():
    rig = Rig()
    async with rig.running() as loop:
        tokens, reason, deltas = await read(loop.submit(greedy_request("a", max_new_tokens=21)))
    assert tokens == continuation((1, 2, 3), 21)
    assert reason is FinishReason.LENGTH
    assert max(len(delta.token_ids) for delta in deltas) == 4  # three right drafts and the bonus token
    assert rig.store.outputs["a"] == tokens
    assert rig.store.reasons["a"] is FinishReason.LENGTH


async def test_counters_follow_the_schema():
    rig = Rig()
    async with rig.running() as loop:
        await read(loop.submit(greedy_request("a", max_new_tokens=13)))
        counters = loop.stats.counters
    # prefill commits 1; three rounds commit 3 + 1 each out of blocks of 4, 4 and 3
    assert counters.num_committed_tokens == 13
    assert counters.num_drafts == 3
    assert counters.num_draft_tokens == counters.num_proposed_tokens == 4 + 4 + 3
    assert counters.num_accepted_tokens == 9
    assert counters.num_accepted_tokens_per_pos == [3, 3, 3]
    assert counters.num_plain_rounds == 0


async def test_many_requests_share_rounds_and_leave_no_pages():
    rig = Rig(max_running=5, prefill_tokens=6)
    prompts = {f"r{n}": [n + 1] * (n % 9 + 1) for n in range(17)}
    async with rig.running() as loop:
        streams = {name: loop.submit(greedy_request(name, prompt)) for name, prompt in prompts.items()}
        results = await asyncio.gather(*(read(stream) for stream in streams.values()))
        await rig.settle()
        assert loop.stats.num_running == loop.stats.num_waiting == 0
    for (tokens, _, _), prompt in zip(results, prompts.values(), strict=True):
        assert tokens == continuation(prompt, 20)
    assert rig.verifier.held == {}
    assert rig.drafter.closed == set(prompts)


@pytest.mark.parametrize("policy", ["early-stop", "fixed", "off"])
async def test_every_policy_gives_the_same_text(policy):
    rig = Rig(planner=planner_of(policy))
    async with rig.running() as loop:
        streams = [loop.submit(greedy_request(f"r{n}", [n, n + 1], 30)) for n in range(1, 9)]
        results = await asyncio.gather(*map(read, streams))
    for n, (tokens, _, _) in enumerate(results, start=1):
        assert tokens == continuation([n, n + 1], 30)


async def test_a_stop_token_inside_an_accepted_block_ends_the_output_exactly_there():
    plain = continuation((1, 2, 3), 20)
    place = 6  # the second draft of the second block
    assert plain.index(plain[place]) == place
    rig = Rig()
    async with rig.running() as loop:
        tokens, reason, deltas = await read(loop.submit(greedy_request("a", stop=[plain[place]])))
        await rig.settle()
    assert tokens == plain[: place + 1]
    assert reason is FinishReason.STOP
    assert deltas[-1].round.num_accepted == len(deltas[-1].token_ids)
    assert rig.verifier.held == {}


async def test_the_output_is_capped_by_the_context():
    rig = Rig(verifier=FakeVerifier(max_context_len=16))
    async with rig.running() as loop:
        tokens, reason, _ = await read(loop.submit(greedy_request("a", [5] * 10, 100)))
    assert (tokens, reason) == (continuation([5] * 10, 6), FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("prompt", "max_new_tokens", "error", "field"),
    [
        ((), 5, InvalidRequestError, "prompt_token_ids"),
        ((1, 97), 5, InvalidRequestError, "prompt_token_ids"),
        ((1, -1), 5, InvalidRequestError, "prompt_token_ids"),
        ((1, 2), 0, InvalidRequestError, "max_new_tokens"),
        ((1,) * 400, 5, ContextTooLongError, "prompt_token_ids"),
    ],
)
async def test_a_wrong_request_is_refused_at_once_and_by_name(prompt, max_new_tokens, error, field):
    rig = Rig()
    async with rig.running() as loop:
        with pytest.raises(error) as caught:
            loop.submit(greedy_request("a", prompt, max_new_tokens))
    assert caught.value.field == field
    assert field in str(caught.value)


async def test_an_id_in_use_is_refused():
    rig = Rig()
    async with rig.running() as loop:
        loop.submit(greedy_request("a"))
        with pytest.raises(InvalidRequestError, match="request_id a"):
            loop.submit(greedy_request("a"))


async def test_beyond_the_queue_a_request_is_refused_and_told_when_to_come_back():
    rig = Rig(max_running=2, max_waiting=3)
    async with rig.running() as loop:
        streams = [loop.submit(greedy_request(f"r{n}")) for n in range(5)]
        with pytest.raises(OverloadedError) as caught:
            loop.submit(greedy_request("late"))
        assert caught.value.retry_after_s > 0
        await asyncio.gather(*map(read, streams))
        assert (await read(loop.submit(greedy_request("late"))))[0] == continuation((1, 2, 3), 20)


async def test_before_the_verifier_answered_requests_are_refused():
    with pytest.raises(ServiceUnavailableError, match="not answered yet"):
        Rig().loop.submit(greedy_request("a"))


async def test_a_long_prompt_is_computed_in_chunks_while_others_stream():
    rig = Rig(prefill_tokens=8, has_drafter=False)
    async with rig.running() as loop:
        short = loop.submit(greedy_request("short", max_new_tokens=30))
        await anext(short)
        long_one = loop.submit(greedy_request("long", [7] * 80, 2))
        tokens, _, _ = await read(long_one)
    assert tokens == continuation([7] * 80, 2)
    shared = [step for step in rig.verifier.steps if len(step) == 2 and isinstance(step[1], PrefillItem)]
    assert len(shared) == 10
    assert all(isinstance(step[0], VerifyItem) and step[1].num_tokens == 8 for step in shared)


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
            await read(_rest(stream, len(first.token_ids)))
        assert 60 <= rig.clock.time_s - gone_s < 70
        rig.verifier.outage = None
        assert (await read(loop.submit(greedy_request("b"))))[0] == continuation((1, 2, 3), 20)
        await rig.settle()
    assert rig.verifier.held == {}


async def _rest(stream: RequestStream, start: int):
    async for delta in stream:
        yield replace(delta, start=delta.start - start)


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
        await verifier.open(_foreign(12))
        verifier.held["foreign"].num_computed = 12
        with pytest.raises(ContextTooLongError, match="no pages for more"):
            await read(loop.submit(greedy_request("a", [3] * 5, 100)))
        await rig.settle()
    assert set(verifier.held) == {"foreign"}


def _foreign(num_tokens: int):
    return OpenRequest("foreign", 1, (1,) * num_tokens, num_tokens, SamplingParams())


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
    with pytest.raises(ServiceUnavailableError, match="scheduler stopped"):
        await read(_rest(stream, 1))
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
    assert sum(entry.num_committed for report in reports for entry in report.verified) == 12
