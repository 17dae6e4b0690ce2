"""The round loop over fakes: what it gives when all goes well, and what it refuses."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from loop_rig import Rig, read

from dspark.decoding.types import FinishReason, PrefillItem, SamplingParams, VerifyItem
from dspark.errors import (
    ContextTooLongError,
    DeadlineError,
    InvalidRequestError,
    OverloadedError,
    ServiceUnavailableError,
)
from dspark.rounds.planner import FixedPlanner, planner_of
from dspark.rounds.policies import POLICIES
from tests.fakes import FakeVerifier, continuation, greedy_request, step_costs


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


@pytest.mark.parametrize("copies", [False, True])
async def test_a_block_that_was_copied_is_not_made_shorter_for_what_it_was_worth(copies: bool):
    verifier = FakeVerifier()
    # a second draft is not worth its row
    verifier.info = replace(verifier.info, step_cost=step_costs((1, 0.010), (2, 0.011), (8, 0.060)))
    rig = Rig(verifier=verifier, planner=planner_of("early-stop"))
    rig.drafter.copies, rig.drafter.num_right = copies, 1
    async with rig.running() as loop:
        tokens, _, _ = await read(loop.submit(greedy_request("a", max_new_tokens=40)))
    assert tokens == continuation((1, 2, 3), 40)
    asked = [call[0] for call in rig.drafter.calls]
    assert {one.max_copied for one in asked[:5]} == {4}, "gamma, while there is room"
    assert asked[-1].max_copied < 4
    shorter = min(one.max_drafts for one in asked[:5])
    assert shorter == 4 if copies else shorter < 4


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


@pytest.mark.parametrize("policy", POLICIES)
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


async def test_the_drafter_is_told_how_much_of_the_last_block_was_verified():
    rig = Rig(planner=FixedPlanner(2))
    async with rig.running() as loop:
        await read(loop.submit(greedy_request("a", max_new_tokens=12)))
    told = [ask.num_verified for call in rig.drafter.calls for ask in call]
    assert told == [0, *[2] * (len(told) - 1)]
    assert len(told) > 2


async def turns_until(condition) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("it never came to that")


async def test_the_barrier_bears_a_drafter_that_comes_and_goes_and_requests_that_join_and_leave():
    rig = Rig(planner=planner_of("barrier"), first_pause_s=0.01, longest_pause_s=0.01)
    async with rig.running() as loop:
        first = asyncio.create_task(read(loop.submit(greedy_request("a", max_new_tokens=60))))
        await turns_until(lambda: len(rig.drafter.calls) >= 3)
        second = asyncio.create_task(read(loop.submit(greedy_request("b", [7, 8], max_new_tokens=40))))
        await turns_until(lambda: len(rig.drafter.calls) >= 6)
        rig.drafter.outage = DeadlineError("late")
        await turns_until(lambda: loop.stats.num_draft_failures > 0)
        rig.drafter.outage = None
        rig.drafter.restart()
        rig.clock.time_s += 1
        async with loop.submit(greedy_request("c", [9], max_new_tokens=30)) as given_up:
            await anext(given_up)
        results = await asyncio.gather(first, second)
        num_accepted = loop.stats.counters.num_accepted_tokens
    assert results[0][0] == continuation((1, 2, 3), 60)
    assert results[1][0] == continuation([7, 8], 40)
    assert num_accepted > 10


async def test_the_retrospective_policy_refuses_a_sampled_request_without_a_seed():
    rig = Rig(planner=planner_of("retrospective"))
    sampled = replace(greedy_request("a"), sampling=SamplingParams())
    async with rig.running() as loop:
        with pytest.raises(InvalidRequestError, match="policy retrospective"):
            loop.submit(sampled)
        assert (await read(loop.submit(greedy_request("a"))))[0] == continuation((1, 2, 3), 20)
