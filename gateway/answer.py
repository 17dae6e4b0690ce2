"""Answers one generation request, streamed or whole, from the deltas of its choices."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse, Response

from dspark.errors import DsparkError
from gateway.bodies.common import AnswerBody, FinishedChoice
from gateway.edge import Edge
from gateway.errors import INTERNAL_ERROR, error_body
from gateway.generation.choice import ChoiceDelta
from gateway.generation.plan import ChoicePlan
from gateway.generation.run import run_choices
from gateway.generation.statistics import ResponseStatistics
from gateway.schemas.generation import GenerationFields
from gateway.sse import DONE, KEEP_ALIVE, EventStream, event, with_pauses

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """One response in the making."""

    fields: GenerationFields
    plans: tuple[ChoicePlan, ...]
    body: AnswerBody
    statistics: ResponseStatistics

    @property
    def metrics(self) -> dict[str, Any]:
        """The `metrics` member."""
        return self.statistics.metrics(with_rounds=self.fields.return_round_details)


async def respond(answer: Answer, edge: Edge) -> Response:
    """The response, streamed when the request asks for it.

    A stream is begun only when the scheduler has sent something or has been silent for the keep-alive
    time, so that a refused request is answered with its status and not with an event.

    Raises:
        DsparkError: the request failed before anything was sent.
    """
    run = _observed(answer, edge)
    if not answer.fields.stream:
        return JSONResponse(await _whole(answer, run))
    items = with_pauses(run, edge.options.keep_alive_s)
    first = await anext(items)
    return EventStream(_events(answer, first, items))


async def _whole(answer: Answer, run: AsyncGenerator[ChoiceDelta, None]) -> dict[str, Any]:
    deltas: list[list[ChoiceDelta]] = [[] for _ in answer.plans]
    async with aclosing(run):
        async for delta in run:
            deltas[delta.index].append(delta)
    body = answer.body.whole([FinishedChoice.joined(of_choice) for of_choice in deltas])
    return {**body, "usage": answer.statistics.usage, "metrics": answer.metrics}


async def _events(
    answer: Answer, first: ChoiceDelta | None, items: AsyncGenerator[ChoiceDelta | None, None]
) -> AsyncGenerator[bytes, None]:
    """Opening chunks, content, usage if asked for, and the end, which comes after an error too."""
    try:
        opening = [_chunk(answer, chunk, num_tokens=0) for chunk in answer.body.opening()]
        yield b"".join(opening) + _content(answer, first)
        async for delta in items:
            if content := _content(answer, delta):
                yield content
        if answer.fields.has_usage_chunk:
            figures = {"usage": answer.statistics.usage, "metrics": answer.metrics}
            yield event({**answer.body.closing(), **figures})
    except DsparkError as error:
        yield event(error_body(error))
    except Exception:
        _logger.exception("the stream of %s failed", answer.plans[0].request.request_id)
        yield event(INTERNAL_ERROR)
    finally:
        await items.aclose()
    yield DONE


def _content(answer: Answer, delta: ChoiceDelta | None) -> bytes:
    if delta is None:
        return KEEP_ALIVE
    chunk = answer.body.chunk(delta)
    if chunk is None:
        return b""
    return _chunk(answer, chunk, num_tokens=answer.statistics.completion_tokens)


def _chunk(answer: Answer, chunk: dict[str, Any], *, num_tokens: int) -> bytes:
    """One chunk; where a usage chunk follows, the others say so with a null or the usage so far."""
    if answer.fields.has_usage_chunk:
        is_running = answer.fields.has_running_usage
        chunk["usage"] = answer.statistics.usage_at(num_tokens) if is_running else None
    return event(chunk)


async def _observed(answer: Answer, edge: Edge) -> AsyncGenerator[ChoiceDelta, None]:
    """The deltas of all choices, counted."""
    run = run_choices(answer.plans, edge.backend, edge.model.tokenizer.table)
    num_open = len(answer.plans)
    edge.metrics.requests.labels(answer.plans[0].request.service.tier.value).inc()
    edge.metrics.open_responses.inc()
    try:
        async for delta in run:
            answer.statistics.observe(delta)
            if delta.finish_reason is not None:
                num_open -= 1
                edge.metrics.observe_choice(delta.finish_reason)
            yield delta
    finally:
        await run.aclose()
        for _ in range(num_open):
            edge.metrics.observe_choice("abort")
        edge.metrics.open_responses.dec()
        edge.metrics.observe_end(answer.statistics)
