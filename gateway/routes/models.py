"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.edge import Edge


def models_router(edge: Edge) -> APIRouter:
    """Routes over one edge."""
    router = APIRouter()

    @router.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [_card(edge)]}

    @router.get("/v1/models/{model:path}")
    async def get_model(model: str) -> dict[str, Any]:
        edge.model.check_name(model)
        return _card(edge)

    return router


def _card(edge: Edge) -> dict[str, Any]:
    info = edge.scheduler.last
    return {
        "id": edge.model.name,
        "object": "model",
        "created": edge.model.created,
        "owned_by": "dspark",
        "root": info.target_name if info else edge.model.name,
        "drafter": (info.drafter_name or None) if info else None,
        "max_model_len": info.max_context_len if info else None,
    }
