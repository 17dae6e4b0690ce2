"""The verifier as the loop sees it: what it told about itself, and which of its requests are to be freed."""

from __future__ import annotations

from collections.abc import Sequence

from dspark.decoding.types import OpenRequest, PrefillItem, StepResult, VerifierInfo, VerifyItem
from dspark.errors import ServiceUnavailableError
from dspark.rounds.interfaces import Verifier


class TargetLink:
    """Remembers across outages; errors of the verifier pass through."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._info: VerifierInfo | None = None
        self._to_close: set[str] = set()
        self.is_ready = False
        self.num_free_pages = 0

    @property
    def info(self) -> VerifierInfo:
        """What the verifier last told about itself.

        Raises:
            ServiceUnavailableError: it never answered.
        """
        if self._info is None:
            raise ServiceUnavailableError("the verifier has not answered yet; try again when it is up")
        return self._info

    @property
    def num_pages(self) -> int:
        """Pages of its pool; 0 before it answered."""
        return self._info.num_pages if self._info else 0

    async def connect(self) -> bool:
        """Make sure that the verifier answers; True where that is news."""
        if self.is_ready:
            return False
        self._info = await self._verifier.get_info()
        self.num_free_pages = self._info.num_pages
        self.is_ready = True
        return True

    def lose(self) -> None:
        """Note that it failed; it may come back as another one."""
        self.is_ready = False

    async def open(self, request: OpenRequest) -> None:
        """Hold a request. A release of an older epoch is void, as opening replaces it."""
        self._to_close.discard(request.request_id)
        await self._verifier.open(request)

    async def step(self, items: Sequence[PrefillItem | VerifyItem]) -> StepResult:
        """One forward pass."""
        result = await self._verifier.step(items)
        assert len(result.outcomes) == len(items), (len(result.outcomes), len(items))
        self.num_free_pages = result.num_free_pages
        return result

    def release(self, request_id: str) -> None:
        """Have the verifier free a request's pages at the next `flush`."""
        self._to_close.add(request_id)

    async def flush(self) -> None:
        """Pass on the releases; those that fail are passed on later."""
        if self._to_close:
            request_ids = sorted(self._to_close)
            await self._verifier.close(request_ids)
            self._to_close.difference_update(request_ids)
