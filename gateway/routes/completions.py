"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.answer import Answer, respond
from gateway.bodies.completions import CompletionBody
from gateway.disconnect import WhileConnected
from gateway.edge import Edge
from gateway.generation.plan import Prompt, plan_choices
from gateway.generation.service import service_of
from gateway.generation.statistics import ResponseStatistics
from gateway.key_check import key_of
from gateway.keys import ApiKey
from gateway.schemas.completions import CompletionRequest, TokenPrompt


def completions_router(edge: Edge) -> APIRouter:
    """Routes over one edge."""
    router = APIRouter()

    @router.post("/v1/completions")
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        return WhileConnected(lambda: _answer(edge, body, key_of(request)))

    return router


async def _answer(edge: Edge, fields: CompletionRequest, key: ApiKey | None) -> Response:
    start = edge.clock()
    edge.model.check_name(fields.model)
    service = service_of(fields.service_tier, key)
    limits = await edge.limits()
    prompts = [
        await _prompt_of(edge, given, limits.vocab_size, echo=bool(fields.echo)) for given in fields.prompts
    ]
    envelope = edge.envelope("cmpl", service.tier)
    plans = plan_choices(envelope.id, fields, prompts, limits, num_logprobs=fields.logprobs, service=service)
    body = CompletionBody(
        envelope=envelope,
        table=edge.model.tokenizer.table,
        echoes=tuple(plan.echo for plan in plans),
        has_logprobs=fields.logprobs is not None,
        has_details=fields.return_round_details,
    )
    statistics = ResponseStatistics(
        edge.clock, start_s=start, prompt_tokens=sum(len(p.token_ids) for p in prompts), gamma=edge.gamma()
    )
    return await respond(Answer(fields, plans, body, statistics), edge)


async def _prompt_of(edge: Edge, given: str | TokenPrompt, vocab_size: int, *, echo: bool) -> Prompt:
    tokenizer = edge.model.tokenizer
    if isinstance(given, str):
        token_ids, text = await tokenizer.encode(given, add_special_tokens=True), given
    else:
        token_ids, text = given, ""
    edge.check_tokens(token_ids, vocab_size, "prompt")
    return Prompt(token_ids, (text or tokenizer.decode(token_ids)) if echo else "")
