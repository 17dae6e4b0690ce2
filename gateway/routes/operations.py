"""GET /health, /metrics and /version."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from gateway.backend import ServingInfo
from gateway.edge import Edge, package_version


def operations_router(edge: Edge) -> APIRouter:
    """Routes over one edge."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> Response:
        info = await edge.scheduler.now()
        return health_response(info, was_ready=edge.scheduler.was_ready)

    @router.get("/metrics")
    async def metrics() -> Response:
        text = edge.metrics.exposition(await edge.scheduler.now())
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    @router.get("/version")
    async def version() -> dict[str, Any]:
        return {"version": package_version()}

    return router


def health_response(info: ServingInfo | None, *, was_ready: bool) -> Response:
    """200 while requests are served, if slower than they should be; 503 while they are not.

    ok: every part works. degraded: a part is missing (drafter or store: requests are still served).
    loading: the scheduler or the verifier has not been up yet.
    """
    if info is None or not info.is_verifier_ready:
        status = "degraded" if was_ready else "loading"
        parts = {"scheduler": "down" if info is None else "up", "verifier": "down"}
        if info is None:
            del parts["verifier"]
        return JSONResponse({"status": status, "parts": parts}, 503)
    drafter = ("up" if info.is_drafter_ready else "down") if info.drafter_name or info.gamma else "off"
    store = "up" if info.is_store_healthy else "down"
    status = "degraded" if "down" in (drafter, store) else "ok"
    parts = {"scheduler": "up", "verifier": "up", "drafter": drafter, "store": store}
    return JSONResponse({"status": status, "parts": parts})
