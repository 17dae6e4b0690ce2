"""Two cohorts in flight: they overlap, and nothing between a draft and its step is lost or stale."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np
import pytest
from loop_rig import Rig, read

from dspark.decoding.types import FinishReason, VerifyItem
from dspark.errors import EngineError, PeerLostError, ServiceUnavailableError
from dspark.evaluation.simulation.clock import VirtualClock, run_in_virtual_time
from dspark.rounds.adaptive import BarrierPlanner
from dspark.rounds.config import LoopConfig
from dspark.rounds.loop import RoundLoop
from dspark.rounds.planner import FixedPlanner, planner_of
from dspark.rounds.policies import POLICIES
from dspark.rounds.step_ahead import StepAhead
from dspark.scheduling.barrier import MIN_AGE, CausalityError, verify_budget
from tests.fakes import FakeDrafter, FakeVerifier, continuation, greedy_request

DRAFT_S, STEP_S = 0.004, 0.010


class Timeline:
    """A loop over fakes that take time, and who was at work when."""

    def __init__(self, *, cohorts: str = "2", step_s: float = STEP_S, draft_s: float = DRAFT_S) -> None:
        self.steps: list[tuple[float, float, frozenset[str]]] = []
        self.drafts: list[tuple[float, float, frozenset[str]]] = []
        self.clock, verifier = VirtualClock(), FakeVerifier()
        drafter = FakeDrafter(verifier)
        verifier.step = self._timed(verifier.step, step_s, self.steps)
        drafter.draft = self._timed(drafter.draft, draft_s, self.drafts)
        self.loop = RoundLoop(
            drafter,
            verifier,
            planner=FixedPlanner(4),
            config=LoopConfig(cohorts=cohorts),
            clock=self.clock,
        )

    def _timed(self, call, seconds, log):
        async def timed(parts):
            began_s = self.clock.now()
            await self.clock.sleep(seconds)
            answer = await call(parts)
            log.append((began_s, self.clock.now(), frozenset(part.request_id for part in parts)))
            return answer

        return timed

    def serve(self, num_requests: int, max_new_tokens: int = 60) -> list[list[int]]:
        outputs: list[list[int]] = []

        async def main() -> None:
            running = asyncio.create_task(self.loop.run())
            await self.loop.wait_until_ready()
            requests = [greedy_request(f"r{n}", [n, 9], max_new_tokens) for n in range(num_requests)]
            results = await asyncio.gather(*(read(self.loop.submit(request)) for request in requests))
            outputs.extend(tokens for tokens, _, _ in results)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        run_in_virtual_time(main())
        return outputs


def test_one_cohort_is_drafted_while_the_other_is_verified_and_no_request_is_in_both():
    timeline = Timeline()
    assert timeline.serve(6) == [continuation([n, 9], 60) for n in range(6)]
    beside = 0
    for began_s, ended_s, drafted in timeline.drafts:
        for step_began_s, step_ended_s, verified in timeline.steps:
            if step_began_s < ended_s - 1e-6 and began_s < step_ended_s - 1e-6:
                beside += 1
                assert not drafted & verified
    assert beside >= len(timeline.drafts) - 2
    assert {len(drafted) for _, _, drafted in timeline.drafts} == {3}


def test_there_is_one_step_and_one_draft_in_flight_at_a_time():
    timeline = Timeline()
    timeline.serve(5)
    for log in (timeline.steps, timeline.drafts):
        for before, after in pairwise(log):
            assert before[1] <= after[0] + 1e-6


def test_a_round_of_all_lasts_two_steps_instead_of_a_step_and_a_draft():
    ends = {}
    for cohorts in ("1", "2"):
        timeline = Timeline(cohorts=cohorts, draft_s=0.5 * STEP_S)
        timeline.serve(4)
        ends[cohorts] = timeline.steps[-1][1]
    # 15 rounds of 1.5 steps against 15 of 2: with steps that cost the same at any size one cohort is faster
    assert ends["2"] / ends["1"] == pytest.approx(2.0 / 1.5, rel=0.08)


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_text_is_that_of_each_request_alone_under_every_policy(policy):
    rig = Rig(cohorts="2", planner=planner_of(policy), max_running=6, prefill_tokens=4)
    prompts = {f"r{n}": [n + 1] * (n % 5 + 1) for n in range(14)}
    async with rig.running() as loop:
        streams = [
            read(loop.submit(greedy_request(name, prompt, 10 + 3 * len(prompt))))
            for name, prompt in prompts.items()
        ]
        results = await asyncio.gather(*streams)
        await rig.settle()
        assert loop.stats.num_running == loop.stats.num_waiting == 0
    for (tokens, reason, _), prompt in zip(results, prompts.values(), strict=True):
        assert (tokens, reason) == (continuation(prompt, 10 + 3 * len(prompt)), FinishReason.LENGTH)
    assert rig.verifier.held == {}
    assert rig.drafter.closed == set(prompts)


async def test_a_request_that_leaves_between_draft_and_step_is_not_verified_any_more():
    rig = Rig(cohorts="2")
    async with rig.running() as loop:
        leaving = loop.submit(greedy_request("leaving", [5, 9], 300))
        others = [loop.submit(greedy_request(f"r{n}", [n, 9], 60)) for n in range(3)]
        await anext(leaving)
        readers = asyncio.gather(*map(read, others))
        async for delta in leaving:
            if "leaving" in {ask.request_id for ask in rig.drafter.calls[-1]} and delta.round.num_drafted:
                break
        await leaving.aclose()
        num_steps = len(rig.verifier.steps)
        results = await readers
        await rig.settle()
    late = [step for step in rig.verifier.steps[num_steps + 1 :] if "leaving" in {i.request_id for i in step}]
    assert late == []
    assert [tokens for tokens, _, _ in results] == [continuation([n, 9], 60) for n in range(3)]
    assert rig.verifier.held == {}


async def test_joining_requests_even_the_cohorts_out_and_leave_no_one_behind():
    rig = Rig(cohorts="2")
    async with rig.running() as loop:
        first = [
            asyncio.ensure_future(read(loop.submit(greedy_request(f"a{n}", [n, 9], 30)))) for n in (0, 1)
        ]
        await rig.settle()
        later = [
            asyncio.ensure_future(read(loop.submit(greedy_request(f"b{n}", [n, 7], 90)))) for n in range(6)
        ]
        results = await asyncio.gather(*first, *later)
    sizes = [len(call) for call in rig.drafter.calls if {ask.request_id[0] for ask in call} == {"b"}]
    assert set(sizes[2:-4]) == {3}
    assert [tokens for tokens, _, _ in results[2:]] == [continuation([n, 7], 90) for n in range(6)]


async def test_a_cohort_that_has_grown_too_large_hands_members_over():
    rig = Rig(cohorts="2")
    async with rig.running() as loop:
        # every other request ends soon, so that one cohort nearly vanishes
        streams = [loop.submit(greedy_request(f"r{n}", [n, 9], 16 if n % 2 else 150)) for n in range(8)]
        results = await asyncio.gather(*map(read, streams))
    sizes = [len(call) for call in rig.drafter.calls]
    assert sizes.count(2) > 20, "the four that are left are two and two"
    for n, (tokens, _, _) in enumerate(results):
        assert tokens == continuation([n, 9], 16 if n % 2 else 150)


async def test_who_gives_way_between_draft_and_step_comes_back_with_the_same_text():
    rig = Rig(cohorts="2", verifier=FakeVerifier(num_pages=24, page_size=4), prefill_tokens=4)
    async with rig.running() as loop:
        streams = [loop.submit(greedy_request(f"r{n}", [n + 1] * 4, 50)) for n in range(4)]
        results = await asyncio.gather(*map(read, streams))
        await rig.settle()
        assert 0 < loop.stats.counters.num_preemptions < 10
    for n, (tokens, reason, _) in enumerate(results):
        assert (tokens, reason) == (continuation([n + 1] * 4, 50), FinishReason.LENGTH)
    assert rig.verifier.held == {}


async def test_a_long_prompt_stalls_neither_cohort():
    rig = Rig(cohorts="2", prefill_tokens=8)
    async with rig.running() as loop:
        streams = [loop.submit(greedy_request(f"r{n}", [n, 9], 120)) for n in range(4)]
        readers = [asyncio.ensure_future(read(stream)) for stream in streams]
        await rig.settle()
        long = asyncio.ensure_future(read(loop.submit(greedy_request("long", [4] * 60))))
        results = await asyncio.gather(*readers, long)
    with_prompt = [
        step
        for step in rig.verifier.steps
        if any(item.request_id == "long" and not isinstance(item, VerifyItem) for item in step)
    ]
    assert len(with_prompt) == 15, "half of the prompt tokens of a round in each of its two steps"
    assert all(sum(isinstance(item, VerifyItem) for item in step) == 2 for step in with_prompt)
    assert results[-1][0] == continuation([4] * 60, 20)


async def test_a_drafter_lost_between_two_rounds_costs_speed_only_and_one_cohort_is_left():
    rig = Rig(cohorts="2")

    def die(num_steps: int) -> None:
        if num_steps == 6:
            rig.drafter.outage = ServiceUnavailableError("killed")

    rig.verifier.on_step = die
    async with rig.running() as loop:
        streams = [loop.submit(greedy_request(f"r{n}", [n, 9], 60)) for n in range(4)]
        results = await asyncio.gather(*map(read, streams))
        assert loop.stats.num_cohorts == 1
        assert loop.stats.num_draft_failures == 1
    assert [tokens for tokens, _, _ in results] == [continuation([n, 9], 60) for n in range(4)]
    assert any(len(step) == 4 for step in rig.verifier.steps[8:])


@pytest.mark.parametrize("error", [ServiceUnavailableError("gone"), EngineError("nan")])
async def test_a_step_that_fails_drops_the_draft_beside_it_and_all_is_opened_anew(error):
    rig = Rig(cohorts="2")
    rig.verifier.step_failures = [None] * 5 + [error, None, error]
    async with rig.running() as loop:
        streams = [loop.submit(greedy_request(f"r{n}", [n, 9], 40)) for n in range(4)]
        results = await asyncio.gather(*map(read, streams))
        assert loop.stats.counters.num_step_failures == 2
    assert [tokens for tokens, _, _ in results] == [continuation([n, 9], 40) for n in range(4)]


async def test_a_verifier_that_restarts_is_given_both_cohorts_anew():
    rig = Rig(cohorts="2")
    rig.verifier.on_step = lambda num_steps: rig.verifier.restart() if num_steps == 6 else None
    async with rig.running() as loop:
        streams = [loop.submit(greedy_request(f"r{n}", [n, 9], 40)) for n in range(4)]
        results = await asyncio.gather(*map(read, streams))
        assert loop.stats.counters.num_reopens == 4
    assert [tokens for tokens, _, _ in results] == [continuation([n, 9], 40) for n in range(4)]


async def test_a_loop_that_stops_with_two_cohorts_in_flight_ends_all_streams_and_frees_their_pages():
    rig = Rig(cohorts="2")
    async with rig.running() as loop:
        streams = [loop.submit(greedy_request(f"r{n}", [n, 9], 300)) for n in range(4)]
        for stream in streams:
            await anext(stream)
        rig.drafter.is_hanging = True
        await rig.settle()
        rig.drafter.is_hanging = False
    for stream in streams:
        with pytest.raises(PeerLostError, match="scheduler stopped"):
            async for _ in stream:
                pass
    assert rig.verifier.held == {}


async def test_one_request_is_one_cohort_and_the_number_follows_the_requests():
    rig = Rig(cohorts="2")
    async with rig.running() as loop:
        alone = loop.submit(greedy_request("alone", [5, 9], 90))
        await anext(alone)
        assert loop.stats.num_cohorts == 1
        await read(loop.submit(greedy_request("other", [6, 9], 30)))
        assert len(rig.verifier.steps[-1]) == 1
        tokens = [token for delta in [delta async for delta in alone] for token in delta.token_ids]
        assert loop.stats.num_cohorts == 1
    assert tokens == continuation([5, 9], 90)[1:]


def test_a_budget_knows_nothing_of_the_last_round_of_its_cohort_nor_of_rounds_counted_with_the_other():
    planner = BarrierPlanner()
    verifier = FakeVerifier()
    planner.learn_costs(verifier.info, FakeDrafter(verifier).info)

    def plan(cohort: int, confidence: float) -> None:
        step = StepAhead([f"c{cohort}"], [4], cohort=cohort, num_cohorts=2)
        planner.prepare(step)
        planner.plan(step, [np.full(4, confidence, dtype=np.float32)])

    for place in range(6):
        plan(place % 2, 0.9)
    for cohort in (0, 1):
        known = planner._history[cohort].before(4)
        assert known is not None
        assert (known.round_number, list(known.request_ids)) == (4 - MIN_AGE, [f"c{cohort}"])
        fresh = planner._history[cohort].before(3 + MIN_AGE)
        with pytest.raises(CausalityError, match="budget of round 4 may not know the confidences of round 3"):
            verify_budget(fresh, 4, {"c0": 4}, planner._curve(4, StepAhead(["c0"], [4])))
