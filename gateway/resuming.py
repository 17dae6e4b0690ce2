"""Carries streams over the loss of the scheduler: whoever takes its place goes on where they broke off."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from dspark.decoding.types import GenerationRequest, TokenDelta
from dspark.errors import PeerLostError, ServiceUnavailableError, UnknownRequestError
from dspark.rounds.backoff import Backoff
from dspark.rounds.clock import Clock, MonotonicClock
from gateway.backend import ServingInfo

_logger = logging.getLogger(__name__)


class ResumableBackend(Protocol):
    """A backend whose streams may be taken up again."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenDelta, None]:
        """See `GenerationBackend`.

        Raises:
            PeerLostError: the backend was lost after it may have taken the request.
        """
        ...

    def resume(self, request_id: str, received: Sequence[int]) -> AsyncGenerator[TokenDelta, None]:
        """Deltas of a request that was lost, behind the tokens received.

        Raises:
            UnknownRequestError: nothing is known of it.
            ServiceUnavailableError: not now; a later attempt may succeed.
        """
        ...

    async def get_info(self) -> ServingInfo:
        """See `GenerationBackend`."""
        ...


@dataclass(frozen=True, slots=True)
class ResumePolicy:
    """How long a stream waits for a scheduler.

    Attributes:
        first_pause_s, longest_pause_s: pauses between attempts double from the one to the other.
        patience_s: without a token for so long after the loss, the stream ends with its error.
    """

    first_pause_s: float = 0.05
    longest_pause_s: float = 1.0
    patience_s: float = 30.0


class ResumingBackend:
    """A `GenerationBackend` whose streams outlive the scheduler, as far as its store remembers them."""

    def __init__(
        self, backend: ResumableBackend, policy: ResumePolicy | None = None, clock: Clock | None = None
    ) -> None:
        self._backend = backend
        self._policy = policy or ResumePolicy()
        self._clock = clock or MonotonicClock()

    async def get_info(self) -> ServingInfo:
        """See `GenerationBackend`."""
        return await self._backend.get_info()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenDelta, None]:
        """See `GenerationBackend`. No token is lost or doubled over a loss."""
        received: list[int] = []
        try:
            async with aclosing(self._backend.generate(request)) as deltas:
                async for delta in deltas:
                    received.extend(delta.token_ids)
                    yield delta
            return
        except PeerLostError as error:
            lost = error
        async with aclosing(self._rest(request.request_id, received, lost)) as deltas:
            async for delta in deltas:
                yield delta

    async def _rest(
        self, request_id: str, received: list[int], lost: PeerLostError
    ) -> AsyncGenerator[TokenDelta, None]:
        """What comes after the loss, however often it is repeated."""
        backoff = Backoff(self._policy.first_pause_s, self._policy.longest_pause_s)
        give_up_s = self._clock.now() + self._policy.patience_s
        _logger.warning("%s is to be resumed behind %d tokens: %s", request_id, len(received), lost)
        while self._clock.now() < give_up_s:
            await self._clock.sleep(backoff.fail(self._clock.now()))
            try:
                async with aclosing(self._backend.resume(request_id, received)) as deltas:
                    async for delta in deltas:
                        received.extend(delta.token_ids)
                        backoff.succeed()
                        give_up_s = self._clock.now() + self._policy.patience_s
                        yield delta
                return
            except UnknownRequestError:
                break
            except ServiceUnavailableError as error:
                _logger.info("%s cannot be resumed yet: %s", request_id, error)
        raise lost
