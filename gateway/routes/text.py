"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.edge import Edge
from gateway.schemas.text import DetokenizeRequest, TokenizeRequest


def text_router(edge: Edge) -> APIRouter:
    """Routes over one edge."""
    router = APIRouter()

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        edge.model.check_name(body.model)
        token_ids = await _encode(edge, body)
        info = edge.scheduler.last
        names = [edge.model.tokenizer.token_of(i) for i in token_ids] if body.return_token_strs else None
        return {
            "count": len(token_ids),
            "max_model_len": info.max_context_len if info else None,
            "tokens": token_ids,
            "token_strs": names,
        }

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        edge.model.check_name(body.model)
        return {"prompt": edge.model.tokenizer.decode(body.tokens)}

    return router


async def _encode(edge: Edge, body: TokenizeRequest) -> tuple[int, ...]:
    if body.prompt is not None:
        return await edge.model.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens)
    text = edge.model.template.render([m.for_template() for m in body.messages or []])
    return await edge.model.tokenizer.encode(text, add_special_tokens=False)
