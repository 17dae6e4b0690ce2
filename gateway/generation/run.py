"""Drives the scheduler streams of a response and closes each the moment its choice has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from dspark.decoding.types import TokenDelta
from dspark.errors import ServiceUnavailableError
from gateway.backend import GenerationBackend
from gateway.generation.choice import ChoiceAssembler, ChoiceDelta
from gateway.generation.plan import ChoicePlan
from gateway.text.tokens import TokenTable


async def run_choice(
    plan: ChoicePlan, backend: GenerationBackend, table: TokenTable
) -> AsyncGenerator[ChoiceDelta, None]:
    """Deltas of one choice. The scheduler stream is closed before the last one is handed on.

    Raises:
        ServiceUnavailableError: the scheduler's stream ended without a reason.
    """
    assembler = ChoiceAssembler(plan, table)
    stream = backend.generate(plan.request)
    try:
        async for delta in stream:
            piece = assembler.push(delta)
            if assembler.finish_reason is not None:
                await _close(stream)
                yield piece
                return
            yield piece
    finally:
        await _close(stream)
    raise ServiceUnavailableError("The scheduler ended the stream before the output was complete; try again.")


async def run_choices(
    plans: Sequence[ChoicePlan], backend: GenerationBackend, table: TokenTable
) -> AsyncGenerator[ChoiceDelta, None]:
    """Deltas of all choices as they come; the first error ends them all."""
    runs = [run_choice(plan, backend, table) for plan in plans]
    pending = {asyncio.ensure_future(_next(run)): run for run in runs}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                run = pending.pop(task)
                piece = task.result()
                if piece is not None:
                    yield piece
                    pending[asyncio.ensure_future(_next(run))] = run
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for run in runs:
            await run.aclose()


async def _next(run: AsyncIterator[ChoiceDelta]) -> ChoiceDelta | None:
    """The next delta, or None at the end: a task may not raise StopAsyncIteration."""
    return await anext(run, None)


async def _close(stream: AsyncIterator[TokenDelta]) -> None:
    """Close a stream that can be closed; generators can, and closing twice is harmless."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
