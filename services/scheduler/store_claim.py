"""Takes requests over from the owner they have in the store."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from dspark.errors import ServiceUnavailableError
from dspark.rounds.stored import StoredRequest
from services.scheduler.store_schema import (
    CLAIM_SCRIPT,
    WriteResult,
    epoch_after,
    epoch_text,
    request_keys,
    request_of,
    unpack_tokens,
)

_log = logging.getLogger(__name__)


class RequestClaims:
    """Reads a request and raises its epoch in one script, so that nothing is committed in between."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        # All requests of a dead scheduler come at once; the client has few connections.
        self._turn = asyncio.Lock()

    async def claim(self, request_id: str, epoch: int) -> StoredRequest | None:
        """See `RequestStore.claim`."""
        try:
            async with self._turn:
                return await self._claim(request_id, epoch)
        except (RedisError, OSError, TimeoutError) as error:
            raise ServiceUnavailableError(
                f"request {request_id} cannot be resumed while the store is away ({error})"
            ) from error

    async def _claim(self, request_id: str, own_epoch: int) -> StoredRequest | None:
        state, tokens, _ = request_keys(request_id)
        stored = await self._client.hget(state, "epoch")
        if stored is None:
            return None
        epoch = epoch_after(int(stored, 16), own_epoch)
        reply: list[Any] = await self._client.eval(CLAIM_SCRIPT, 2, state, tokens, stored, epoch_text(epoch))
        result = WriteResult(reply[0])
        if result is WriteResult.STALE_EPOCH:
            raise ServiceUnavailableError(f"the owner of request {request_id} is changing; try again soon")
        return _stored(request_id, epoch, *reply[1:]) if result is WriteResult.OK else None


def _stored(
    request_id: str, epoch: int, params: bytes, prompt_len: bytes, committed_len: bytes, tokens: bytes
) -> StoredRequest | None:
    """What a reply says, None where that does not make up a request."""
    token_ids = unpack_tokens(tokens)
    if len(token_ids) != int(committed_len):
        _log.warning("the store has lost tokens of %s", request_id)
        return None
    num_prompt = int(prompt_len)
    try:
        request = request_of(request_id, params, token_ids[:num_prompt])
    except ValueError as error:
        _log.warning("the store holds %s with %s", request_id, error)
        return None
    return StoredRequest(request, epoch, token_ids[num_prompt:])
