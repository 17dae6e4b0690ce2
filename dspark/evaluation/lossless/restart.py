"""What a lost scheduler left: requests with part of their outputs, as its store would hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dspark.decoding.types import FinishReason, GenerationRequest
from dspark.rounds.stored import StoredRequest

# Above all epochs of a loop that begins at 0.
_EPOCH = 1 << 20


class LeftBehind:
    """A store of requests whose scheduler is gone; what the new one writes is not looked at."""

    is_healthy = True

    def __init__(self, outputs: Sequence[tuple[GenerationRequest, Sequence[int]]]) -> None:
        """Hold requests, each with the tokens that were committed."""
        self._outputs = {request.request_id: (request, tuple(tokens)) for request, tokens in outputs}

    @property
    def received(self) -> dict[str, tuple[int, ...]]:
        """What their callers have got, by request id."""
        return {name: tokens for name, (_, tokens) in self._outputs.items()}

    async def claim(self, request_id: str, epoch: int) -> StoredRequest | None:
        """See `RequestStore`."""
        if request_id not in self._outputs:
            return None
        request, tokens = self._outputs[request_id]
        return StoredRequest(request, max(epoch, _EPOCH), tokens)

    def create(self, request: GenerationRequest, epoch: int, output: Sequence[int] = ()) -> None:
        """See `RequestStore`."""

    def commit(self, request_id: str, epoch: int, base_len: int, token_ids: Sequence[int]) -> None:
        """See `RequestStore`."""

    def finish(self, request_id: str, epoch: int, reason: FinishReason) -> None:
        """See `RequestStore`."""

    def watch(self, on_stale: Callable[[str], None]) -> None:
        """See `RequestStore`; nobody else takes them over."""
