"""The round loop over fakes under tiers and promises: who begins, who gives way, who gets how many drafts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from loop_rig import Rig, read

from dspark.decoding.service import Service, ServiceTier, Sla
from dspark.decoding.types import PrefillItem, VerifyItem
from dspark.rounds.planner import planner_of
from dspark.rounds.request import LiveRequest
from dspark.scheduling.weights import LONGEST_SLACK_S, deadline_s
from tests.fakes import FakeVerifier, continuation, greedy_request, step_costs

PRIORITY, DEFAULT, FLEX = map(Service, ServiceTier)


def request(name: str, service: Service = DEFAULT, prompt=(1, 2, 3), max_new_tokens: int = 6):
    return replace(greedy_request(name, prompt, max_new_tokens), service=service)


def first_opened(rig: Rig) -> list[str]:
    """Ids in the order in which requests were opened for the first time."""
    return list(dict.fromkeys(opened.request_id for opened in rig.verifier.opened))


async def serve(rig: Rig, *requests) -> list[list[int]]:
    async with rig.running() as loop:
        results = await asyncio.gather(*(read(loop.submit(one)) for one in requests))
        await rig.settle()
    return [tokens for tokens, _, _ in results]


async def test_the_earliest_deadline_begins_first():
    promised = Service(ServiceTier.FLEX, Sla(ttft_s=0.1))
    rig = Rig(max_running=1)
    waiting = [request("flex", FLEX), request("default"), request("fast", PRIORITY), request("sla", promised)]
    await serve(rig, request("running"), *waiting, request("later"))
    assert first_opened(rig) == ["sla", "fast", "running", "default", "later", "flex"]


async def test_no_tier_waits_longer_than_its_slack_under_a_stream_of_priority_arrivals():
    rig = Rig(max_running=1)
    streams, arrivals = [], {}

    def arrive(num_steps: int) -> None:
        rig.clock.time_s += 1.0
        if "flex" not in first_opened(rig):
            name = f"p{num_steps}"
            arrivals[name] = rig.clock.time_s
            streams.append(asyncio.ensure_future(read(rig.loop.submit(request(name, PRIORITY)))))

    rig.verifier.on_step = arrive
    async with rig.running() as loop:
        first = asyncio.ensure_future(read(loop.submit(request("p", PRIORITY))))
        began_s = rig.clock.time_s
        assert (await read(loop.submit(request("flex", FLEX))))[0] == continuation((1, 2, 3), 6)
        await asyncio.gather(first, *streams)
    order = first_opened(rig)
    overtook = order[: order.index("flex")]
    assert len(overtook) > 20, "priority requests kept coming"
    # whoever arrived within the slack went first; nobody who arrived behind it
    assert max(arrivals[name] for name in overtook if name != "p") < began_s + LONGEST_SLACK_S
    assert all(name in overtook for name, at_s in arrivals.items() if at_s < began_s + LONGEST_SLACK_S - 0.5)
    assert any(at_s > began_s + LONGEST_SLACK_S for at_s in arrivals.values())


async def test_out_of_pages_the_lowest_tier_gives_way_and_then_the_youngest():
    rig = Rig(verifier=FakeVerifier(num_pages=24, page_size=4), prefill_tokens=4)
    tiers = {"old-flex": FLEX, "default": DEFAULT, "fast": PRIORITY, "young": PRIORITY}
    outputs = await serve(
        rig, *(request(name, service, [n + 1] * 4, 40) for n, (name, service) in enumerate(tiers.items()))
    )
    assert outputs == [continuation([n + 1] * 4, 40) for n in range(4)]
    reopened = {opened.request_id for opened in rig.verifier.opened if opened.epoch > 1}
    last_steps = {
        item.request_id: n for n, step in enumerate(rig.verifier.steps) for item in step if item.epoch == 1
    }
    assert sorted(reopened, key=last_steps.get)[:2] == ["old-flex", "default"]
    assert "fast" not in reopened


def test_whoever_gave_way_twice_stands_with_the_first_tier():
    # a loop that does not run: its roster alone
    roster, victims = Rig().loop._roster, []
    for number, (name, service) in enumerate({"flex": FLEX, "fast": PRIORITY}.items()):
        sent = request(name, service)
        roster.add(LiveRequest(sent, number, sent.stop, float(number), deadline_s(service, float(number))))
        roster.move_to_open().open()
    for _ in range(4):
        roster.preempt()
        victims.append(roster.waiting.head.request_id)
        roster.move_to_open().open()
    assert victims == ["flex", "flex", "fast", "fast"]


async def test_prompts_are_computed_in_order_of_their_deadlines():
    rig = Rig(prefill_tokens=8, prefill_tokens_alone=8)
    await serve(rig, request("flex", FLEX, [1] * 16), request("fast", PRIORITY, [2] * 16))
    chunks = [item for step in rig.verifier.steps for item in step if isinstance(item, PrefillItem)]
    order = [item.request_id for item in chunks if item.num_tokens == 8]
    assert order == ["fast", "fast", "flex", "flex"]


async def test_a_long_prompt_holds_up_neither_streams_nor_short_prompts():
    rig = Rig(prefill_tokens=8, prefill_tokens_alone=8)
    async with rig.running() as loop:
        stream = loop.submit(request("stream", max_new_tokens=200))
        await anext(stream)
        long = asyncio.ensure_future(read(loop.submit(request("long", prompt=[4] * 160))))
        short = asyncio.ensure_future(read(loop.submit(request("short", prompt=[5] * 6))))
        await short
        assert not long.done()
        await long
        await stream.aclose()
    busy = [step for step in rig.verifier.steps if any(item.request_id == "long" for item in step)]
    with_prompt = [step for step in busy if any(isinstance(item, PrefillItem) for item in step)]
    assert len(with_prompt) >= 20
    for step in with_prompt:
        assert any(isinstance(item, VerifyItem) and item.request_id == "stream" for item in step)
        assert sum(item.num_tokens for item in step if isinstance(item, PrefillItem)) <= 8
    # a quarter of the budget is two tokens a step
    steps_of_short = [step for step in with_prompt if any(item.request_id == "short" for item in step)]
    assert with_prompt.index(steps_of_short[0]) <= 1
    chunks = [
        item for step in steps_of_short for item in step if item.request_id == "short" and len(step) > 2
    ]
    assert [item.num_tokens for item in chunks if isinstance(item, PrefillItem)] == [2, 2, 2]


@pytest.mark.parametrize("policy", ["early-stop", "barrier"])
async def test_a_stream_behind_its_promise_gets_more_drafts_than_its_like(policy):
    verifier = FakeVerifier()
    # the fifth token of a step costs what three drafts bring
    verifier.info = replace(
        verifier.info, step_cost=step_costs((1, 0.010), (4, 0.0101), (5, 0.016), (64, 0.4))
    )
    rig = Rig(verifier=verifier, planner=planner_of(policy))

    def pass_time(num_steps: int) -> None:
        rig.clock.time_s += 0.5

    verifier.on_step = pass_time
    promised = Service(ServiceTier.DEFAULT, Sla(tokens_per_s=100.0))
    async with rig.running() as loop:
        # the later of two alike would lose every tie
        plain = asyncio.ensure_future(read(loop.submit(request("a", max_new_tokens=60))))
        behind = asyncio.ensure_future(read(loop.submit(request("b", promised, max_new_tokens=60))))
        (_, _, plain_deltas), (_, _, behind_deltas) = await plain, await behind

    def num_scheduled(deltas) -> int:
        return sum(delta.round.num_scheduled for delta in deltas[2:12])

    assert num_scheduled(behind_deltas) > num_scheduled(plain_deltas)


async def test_stats_say_who_is_served_and_how_late():
    rig = Rig()
    promised = Service(ServiceTier.PRIORITY, Sla(tokens_per_s=10.0, ttft_s=1.0))
    async with rig.running() as loop:
        assert loop.stats.service.num_late == 0
        stream = loop.submit(request("a", promised, max_new_tokens=300))
        other = loop.submit(request("b", FLEX, max_new_tokens=300))
        rig.clock.time_s += 3.0
        assert (loop.stats.service.num_late, loop.stats.service.most_late_s) == (1, pytest.approx(2.0))
        await anext(stream)
        assert loop.stats.service.num_late == 0
        rig.clock.time_s += 100.0
        service = loop.stats.service
        assert service.num_by_tier == {ServiceTier.PRIORITY: 1, ServiceTier.FLEX: 1}
        assert service.num_late == 1
        assert 95.0 < service.most_late_s <= 100.0
        await stream.aclose()
        await other.aclose()
