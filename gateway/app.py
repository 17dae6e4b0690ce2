"""The HTTP application: routes, middleware and error shapes over one edge."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from dspark.errors import DsparkError
from gateway.edge import Edge, package_version
from gateway.errors import INTERNAL_ERROR, error_response, status_response, validation_error
from gateway.key_check import KeyCheck
from gateway.middleware import BodyLimit, RequestId
from gateway.routes.chat import chat_router
from gateway.routes.completions import completions_router
from gateway.routes.models import models_router
from gateway.routes.operations import operations_router
from gateway.routes.text import text_router

_logger = logging.getLogger(__name__)


def create_app(edge: Edge) -> FastAPI:
    """Build the application. It owns no connection: whoever made the edge closes its backend."""
    app = FastAPI(title="dspark", version=package_version(), docs_url=None, redoc_url=None)
    for router in (chat_router, completions_router, models_router, operations_router, text_router):
        app.include_router(router(edge))
    app.add_middleware(BodyLimit, max_bytes=edge.options.max_body_bytes)
    if edge.keys is not None:
        app.add_middleware(KeyCheck, keys=edge.keys)
    app.add_middleware(RequestId, observe_status=_error_counter(edge))
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(DsparkError, _on_dspark_error)
    app.add_exception_handler(Exception, _on_bug)
    return app


def _error_counter(edge: Edge) -> Callable[[int], None]:
    def observe(status: int) -> None:
        if status >= 400:
            edge.metrics.http_errors.labels(str(status)).inc()

    return observe


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(validation_error(error.errors()))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return status_response(error.status_code, str(error.detail), error.headers)


async def _on_dspark_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, DsparkError)
    return error_response(error)


async def _on_bug(request: Request, error: Exception) -> Response:
    _logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return JSONResponse(dict(INTERNAL_ERROR), 500)
