"""Scheduler, verifier and drafter over real sockets in one event loop, around fake engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from dspark.decoding.types import FinishReason, GenerationRequest
from dspark.errors import InvalidRequestError, OverloadedError
from dspark.rounds.config import LoopConfig
from dspark.rounds.loop import RoundLoop
from dspark.rounds.planner import FixedPlanner
from services.drafter.client import DrafterClient
from services.runtime.channel import open_channel
from services.scheduler.client import SchedulerClient
from services.scheduler.info import describe
from services.verifier.client import VerifierClient
from tests.fakes import FakeVerifier, continuation, greedy_request
from tests.rpc.rpc_fakes import (
    FakeDraftEngine,
    FeatureTap,
    drafter_service,
    feature_pusher,
    running,
    scheduler_service,
    socket_address,
    until,
    verifier_service,
)


class Pipeline:
    """Everything but the drafter runs for the length of `up`; the drafter comes and goes."""

    def __init__(self, folder: Path) -> None:
        self.addresses = {name: socket_address(folder, name) for name in ("d", "v", "s")}
        self.target = FakeVerifier()
        self.engine = FakeDraftEngine(self.target)
        self.loop: RoundLoop
        self.client: SchedulerClient

    @asynccontextmanager
    async def up(self, **config) -> AsyncIterator[Pipeline]:
        async with AsyncExitStack() as stack:
            self.stack = stack
            enter = stack.enter_async_context
            pusher = await enter(feature_pusher(self.addresses["d"]))
            self.target.drafter = FeatureTap(pusher)
            await enter(verifier_service(self.target, self.addresses["v"]))
            verifier = VerifierClient(await enter(open_channel(self.addresses["v"])))
            drafter = DrafterClient(await enter(open_channel(self.addresses["d"])))
            config = LoopConfig(**{"first_pause_s": 0.01, "longest_pause_s": 0.05, **config})
            self.loop = RoundLoop(drafter, verifier, planner=FixedPlanner(4), config=config)
            await enter(running(self.loop.run()))
            await self.loop.wait_until_ready()

            def info():
                return describe(self.loop.stats, verifier.info, drafter.info, is_store_healthy=True)

            await enter(scheduler_service(self.loop.submit, info, self.addresses["s"]))
            self.client = SchedulerClient(await enter(open_channel(self.addresses["s"])))
            yield self

    def drafter(self):
        return drafter_service(self.engine, self.addresses["d"])

    async def drafter_is_known(self) -> None:
        await until(lambda: self.loop.stats.is_drafter_ready)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path)


async def output(client: SchedulerClient, request: GenerationRequest) -> list[int]:
    tokens: list[int] = []
    async for delta in client.generate(request):
        assert delta.start == len(tokens)
        assert delta.request_id == request.request_id
        tokens.extend(delta.token_ids)
    return tokens


async def test_sixteen_streams_give_what_plain_decoding_gives_and_drafts_are_accepted(pipeline) -> None:
    prompts = [(number, 7, 2 * number) for number in range(16)]
    async with pipeline.drafter(), pipeline.up():
        await pipeline.drafter_is_known()
        outputs = await asyncio.gather(
            *(
                output(pipeline.client, greedy_request(f"r{number}", prompt, 40))
                for number, prompt in enumerate(prompts)
            )
        )
        info = await pipeline.client.get_info()
        await until(lambda: pipeline.target.num_used_pages == 0)
        await until(lambda: len(pipeline.engine.closed) == 16)
    assert outputs == [continuation(prompt, 40) for prompt in prompts]
    assert info.target_name == "fake-target"
    assert (info.drafter_name, info.gamma) == ("fake-drafter", 4)
    # The drafter is right three times in a row, then wrong.
    assert info.counters.num_accepted_tokens > info.counters.num_committed_tokens / 2
    assert info.counters.num_accepted_tokens_per_pos[0] > 0


async def test_the_last_delta_says_why_it_ended(pipeline) -> None:
    async with pipeline.up():
        deltas = [delta async for delta in pipeline.client.generate(greedy_request("r", max_new_tokens=3))]
    assert [delta.finish_reason for delta in deltas] == [None, None, FinishReason.LENGTH]


async def test_closing_a_stream_frees_the_request(pipeline) -> None:
    async with pipeline.up():
        stream = pipeline.client.generate(greedy_request("r", max_new_tokens=390))
        await anext(stream)
        assert pipeline.target.num_used_pages > 0
        await stream.aclose()
        await until(lambda: pipeline.target.num_used_pages == 0)
        assert len(pipeline.target.steps) < 300


async def test_a_cancelled_reader_frees_the_request(pipeline) -> None:
    async with pipeline.up():
        reader = asyncio.create_task(output(pipeline.client, greedy_request("r", max_new_tokens=390)))
        await until(lambda: pipeline.target.num_used_pages > 0)
        reader.cancel()
        await until(lambda: pipeline.target.num_used_pages == 0)
        assert len(pipeline.target.steps) < 300


async def test_a_drafter_that_comes_late_goes_and_returns_changes_no_token(pipeline) -> None:
    async with pipeline.up():
        first = asyncio.create_task(output(pipeline.client, greedy_request("r", max_new_tokens=390)))
        await until(lambda: len(pipeline.target.steps) > 5)
        async with pipeline.drafter():
            await until(lambda: pipeline.loop.stats.counters.num_accepted_tokens > 10)
        pipeline.engine.restart()
        accepted = pipeline.loop.stats.counters.num_accepted_tokens
        assert await first == continuation((1, 2, 3), 390)
        async with pipeline.drafter():
            await pipeline.drafter_is_known()
            second = await output(pipeline.client, greedy_request("again", max_new_tokens=300))
        assert second == continuation((1, 2, 3), 300)
        assert pipeline.loop.stats.counters.num_accepted_tokens > accepted


async def test_a_verifier_that_restarts_is_a_pause(pipeline) -> None:
    def forget_at_step_ten(num_steps: int) -> None:
        if num_steps == 10:
            pipeline.target.restart()

    pipeline.target.on_step = forget_at_step_ten
    async with pipeline.up():
        assert await output(pipeline.client, greedy_request("r", max_new_tokens=60)) == continuation(
            (1, 2, 3), 60
        )
    assert pipeline.loop.stats.counters.num_reopens == 1


async def test_a_refused_request_says_which_field(pipeline) -> None:
    async with pipeline.up():
        with pytest.raises(InvalidRequestError) as caught:
            await output(pipeline.client, greedy_request("r", prompt=(1000,)))
    assert caught.value.field == "prompt_token_ids"


async def test_a_full_queue_says_when_to_come_back(pipeline) -> None:
    async with pipeline.up(max_running=1, max_waiting=0):
        stream = pipeline.client.generate(greedy_request("first", max_new_tokens=390))
        await anext(stream)
        with pytest.raises(OverloadedError) as caught:
            await output(pipeline.client, greedy_request("second"))
        assert caught.value.retry_after_s > 0
        await stream.aclose()
