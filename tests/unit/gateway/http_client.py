"""Calls the real application in process, and reads its streams."""

from __future__ import annotations

import json
from typing import Any

import httpx

from gateway.app import create_app
from gateway.backend import GenerationBackend
from tests.unit.gateway.gateway_fakes import make_edge

HELLO = [{"role": "user", "content": "hi"}]


def client_of(backend: GenerationBackend, **options: float) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(make_edge(backend, **options)))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", trust_env=False)


async def ask(
    backend: GenerationBackend, path: str = "/v1/chat/completions", **fields: Any
) -> httpx.Response:
    body = {"messages": HELLO, **fields} if path.endswith("chat/completions") else fields
    async with client_of(backend) as client:
        return await client.post(path, json=body)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The data objects of a stream, which must end with [DONE] and hold nothing after it."""
    blocks = response.text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""], blocks[-2:]
    return [json.loads(b.removeprefix("data: ")) for b in blocks[:-2] if not b.startswith(":")]


def content_of(events: list[dict[str, Any]], index: int = 0) -> str:
    """The text of one choice of a chat stream."""
    choices = [c for e in events for c in e["choices"] if c["index"] == index]
    return "".join(c["delta"].get("content", "") for c in choices)
