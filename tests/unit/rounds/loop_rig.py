"""A round loop over fakes, and how its streams are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from dspark.decoding.types import FinishReason, OpenRequest, SamplingParams, TokenDelta
from dspark.rounds.config import LoopConfig
from dspark.rounds.loop import RoundLoop
from dspark.rounds.planner import FixedPlanner
from dspark.rounds.request import RequestStream
from tests.fakes import FakeClock, FakeDrafter, FakeStore, FakeVerifier


class Rig:
    """A loop and its fakes."""

    def __init__(
        self, *, verifier=None, has_drafter=True, planner=None, store=None, epoch=0, **config
    ) -> None:
        self.verifier = verifier or FakeVerifier()
        self.drafter = FakeDrafter(self.verifier) if has_drafter else None
        self.store, self.clock = store or FakeStore(), FakeClock()
        self.loop = RoundLoop(
            self.drafter,
            self.verifier,
            planner=planner or FixedPlanner(4),
            store=self.store,
            epoch=epoch,
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


async def rest_of(stream: RequestStream, start: int):
    async for delta in stream:
        yield replace(delta, start=delta.start - start)


def foreign(num_tokens: int):
    return OpenRequest("foreign", 1, (1,) * num_tokens, num_tokens, SamplingParams())
