"""The drafter as the loop sees it: sometimes there are blocks, sometimes not, never an error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence

from dspark.decoding.types import DraftBlock, DrafterInfo, DraftRequest
from dspark.errors import DsparkError
from dspark.rounds.backoff import Backoff
from dspark.rounds.clock import Clock
from dspark.rounds.config import LoopConfig
from dspark.rounds.interfaces import Drafter

_log = logging.getLogger(__name__)


class DraftSource:
    """Asks the drafter, bounds the wait, and leaves it alone for a while after a failure."""

    def __init__(self, drafter: Drafter | None, config: LoopConfig, clock: Clock) -> None:
        self._drafter = drafter
        self._timeout_s = config.draft_timeout_s
        self._clock = clock
        self._backoff = Backoff(config.first_pause_s, config.longest_pause_s)
        self._to_close: set[str] = set()
        self._connecting: asyncio.Task[None] | None = None
        self._has_news = False
        self.info: DrafterInfo | None = None
        self.num_failures = 0

    @property
    def is_ready(self) -> bool:
        """Whether the drafter answered when it was last asked."""
        return self.info is not None

    @property
    def is_wanted(self) -> bool:
        """Whether there is a drafter at all."""
        return self._drafter is not None

    async def connect(self) -> None:
        """Ask the drafter what it is, unless that is known or it failed just now."""
        if self._drafter is None or self.info is not None or not self._backoff.is_open(self._clock.now()):
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                self.info = await self._drafter.get_info()
        except (DsparkError, TimeoutError) as error:
            self._note_failure(error)
            return
        self._has_news = True

    def connect_in_background(self) -> None:
        """`connect`, but no round waits for a drafter that may hang."""
        if self._connecting is not None and not self._connecting.done():
            return
        if self._connecting is not None:
            self._connecting.result()
            self._connecting = None
        if self._drafter is not None and self.info is None and self._backoff.is_open(self._clock.now()):
            self._connecting = asyncio.create_task(self.connect())

    def take_news(self) -> bool:
        """Whether a drafter became known since this was last asked."""
        has_news, self._has_news = self._has_news, False
        return has_news

    async def draft(
        self, requests: Sequence[DraftRequest], meanwhile: Callable[[], None] | None = None
    ) -> Sequence[DraftBlock] | None:
        """Blocks of those requests that are ready, or None where the drafter gave no answer.

        `meanwhile` is called once the drafter has been asked, and before its answer is looked at.
        """
        if self._drafter is None or self.info is None or not requests:
            return None
        try:
            async with asyncio.timeout(self._timeout_s):
                blocks = await _beside(self._drafter.draft(requests), meanwhile)
        except (DsparkError, TimeoutError) as error:
            self._note_failure(error)
            return None
        self._backoff.succeed()
        return blocks

    def release(self, request_id: str) -> None:
        """Have the drafter forget a request at the next `flush`."""
        if self._drafter is not None:
            self._to_close.add(request_id)

    def keep(self, request_id: str) -> None:
        """Take back a release: the request is about to be opened anew."""
        self._to_close.discard(request_id)

    async def flush(self) -> None:
        """Pass on the releases; those that fail are passed on later."""
        if self._drafter is None or self.info is None or not self._to_close:
            return
        request_ids = sorted(self._to_close)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._drafter.close(request_ids)
        except (DsparkError, TimeoutError) as error:
            self._note_failure(error)
            return
        self._to_close.difference_update(request_ids)

    def _note_failure(self, error: Exception) -> None:
        """Forget what was known: a drafter that comes back may be another one."""
        self.num_failures += 1
        self.info = None
        pause_s = self._backoff.fail(self._clock.now())
        _log.warning("no drafts for %.2f s: %s", pause_s, str(error) or type(error).__name__)


async def _beside(
    call: Coroutine[object, object, Sequence[DraftBlock]], work: Callable[[], None] | None
) -> Sequence[DraftBlock]:
    """Make a call, and do some work while it is on its way."""
    if work is None:
        return await call
    task = asyncio.create_task(call)
    try:
        await asyncio.sleep(0)  # the call sets out
        work()
        return await task
    finally:
        task.cancel()
