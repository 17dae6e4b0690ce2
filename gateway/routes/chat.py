"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.answer import Answer, respond
from gateway.bodies.chat import ChatBody
from gateway.disconnect import WhileConnected
from gateway.edge import Edge
from gateway.generation.plan import Prompt, plan_choices
from gateway.generation.service import service_of
from gateway.generation.statistics import ResponseStatistics
from gateway.key_check import key_of
from gateway.keys import ApiKey
from gateway.schemas.chat import ChatCompletionRequest


def chat_router(edge: Edge) -> APIRouter:
    """Routes over one edge."""
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
        return WhileConnected(lambda: _answer(edge, body, key_of(request)))

    return router


async def _answer(edge: Edge, fields: ChatCompletionRequest, key: ApiKey | None) -> Response:
    start = edge.clock()
    edge.model.check_name(fields.model)
    service = service_of(fields.service_tier, key)
    limits = await edge.limits()
    messages = [message.for_template() for message in fields.messages]
    text = edge.model.template.render(messages, fields.chat_template_kwargs)
    token_ids = await edge.model.tokenizer.encode(text, add_special_tokens=False)
    edge.check_tokens(token_ids, limits.vocab_size, "messages")
    envelope = edge.envelope("chatcmpl", service.tier)
    plans = plan_choices(
        envelope.id, fields, [Prompt(token_ids)], limits, num_logprobs=fields.num_logprobs, service=service
    )
    body = ChatBody(
        envelope=envelope,
        table=edge.model.tokenizer.table,
        num_choices=len(plans),
        has_logprobs=fields.num_logprobs is not None,
        has_details=fields.return_round_details,
    )
    statistics = ResponseStatistics(
        edge.clock, start_s=start, prompt_tokens=len(token_ids), gamma=edge.gamma()
    )
    return await respond(Answer(fields, plans, body, statistics), edge)
