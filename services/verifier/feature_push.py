"""Carries target features to the drafter over one long-lived stream, and never makes a step wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dspark.decoding.types import DrafterInfo, FeatureBatch
from dspark.errors import DsparkError, ModelMismatchError
from services.drafter.client import DrafterClient, FeatureCall
from services.verifier import metrics

_log = logging.getLogger(__name__)

# Features wait here while the drafter is slow or away; beyond it the oldest are dropped.
DEFAULT_MAX_QUEUED_BYTES = 64 << 20
# Far below the message limit, and small enough that decode features do not wait long behind a prefill's.
_MAX_GROUP_BYTES = 8 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


@dataclass(frozen=True, slots=True)
class _Group:
    """Features that travel in one message."""

    batches: Sequence[FeatureBatch]
    num_bytes: int


class FeaturePusher:
    """A `FeatureSink` over a drafter client. `push` may be called from any thread, `run` owns the stream.

    Losing features costs speed only: the drafter leaves such requests out until they are computed anew.

    Attributes:
        num_dropped: feature batches dropped since start.
    """

    def __init__(
        self,
        drafter: DrafterClient,
        *,
        check: Callable[[DrafterInfo], None],
        max_queued_bytes: int = DEFAULT_MAX_QUEUED_BYTES,
    ) -> None:
        """Make a pusher; call inside the running event loop.

        Args:
            drafter: whom to send to.
            check: raises ModelMismatchError for a drafter that these features do not fit.
            max_queued_bytes: most bytes that wait.
        """
        self._drafter = drafter
        self._check = check
        self._max_queued_bytes = max_queued_bytes
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Group] = deque()
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self.num_dropped = 0

    def push(self, batches: Sequence[FeatureBatch]) -> None:
        """Hand over the features of one step; see `FeatureSink.push`."""
        if batches:
            self._loop.call_soon_threadsafe(self._enqueue, batches)

    async def run(self) -> None:
        """Keep a stream to the drafter for as long as the process lives."""
        pause_s = _FIRST_PAUSE_S
        last_reason = ""
        while True:
            try:
                self._check(await self._drafter.get_info())
                call = await self._drafter.open_features(self._wake.set)
                _log.info("features flow to the drafter")
                pause_s, last_reason = _FIRST_PAUSE_S, ""
                await self._pump(call)
            except DsparkError as error:
                if (reason := str(error)) != last_reason:
                    level = logging.ERROR if isinstance(error, ModelMismatchError) else logging.WARNING
                    _log.log(level, "no features flow to the drafter: %s", reason)
                    last_reason = reason
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _pump(self, call: FeatureCall) -> None:
        """Send what is queued until the stream ends."""
        metrics.FEATURE_STREAM_UP.set(1)
        try:
            while call.is_open:
                self._wake.clear()
                while self._queue and call.is_open:
                    # Sent before it is removed: what an ending stream refuses goes out on the next one.
                    group = self._queue[0]
                    await call.send(group.batches)
                    if self._queue and self._queue[0] is group:
                        self._remove_oldest()
                if call.is_open:
                    await self._wake.wait()
            await call.raise_reason()
        finally:
            metrics.FEATURE_STREAM_UP.set(0)
            call.cancel()

    def _enqueue(self, batches: Sequence[FeatureBatch]) -> None:
        for group in _grouped(batches):
            self._queue.append(group)
            self._queued_bytes += group.num_bytes
        while self._queued_bytes > self._max_queued_bytes:
            dropped = self._remove_oldest()
            self.num_dropped += len(dropped.batches)
            metrics.FEATURE_BATCHES_DROPPED.inc(len(dropped.batches))
        # One turn later: the answer to the step is on its way before these are packed, and the scheduler's
        # work on it hides the time that takes.
        self._loop.call_soon(self._wake.set)

    def _remove_oldest(self) -> _Group:
        group = self._queue.popleft()
        self._queued_bytes -= group.num_bytes
        return group


def _grouped(batches: Sequence[FeatureBatch]) -> list[_Group]:
    """Pack batches into messages of bounded size, cutting those that alone exceed it."""
    groups: list[_Group] = []
    packed: list[FeatureBatch] = []
    num_bytes = 0
    for batch in _cut(batches):
        if packed and num_bytes + batch.num_bytes > _MAX_GROUP_BYTES:
            groups.append(_Group(packed, num_bytes))
            packed, num_bytes = [], 0
        packed.append(batch)
        num_bytes += batch.num_bytes
    groups.append(_Group(packed, num_bytes))
    return groups


def _cut(batches: Sequence[FeatureBatch]) -> list[FeatureBatch]:
    cut: list[FeatureBatch] = []
    for batch in batches:
        num_rows = len(batch.token_ids)
        rows_each = max(1, _MAX_GROUP_BYTES * num_rows // max(1, batch.num_bytes))
        if num_rows <= rows_each:
            cut.append(batch)
            continue
        cut.extend(_rows(batch, first, first + rows_each) for first in range(0, num_rows, rows_each))
    return cut


def _rows(batch: FeatureBatch, first: int, last: int) -> FeatureBatch:
    """Tokens [first, last) of a batch."""
    return replace(
        batch,
        start=batch.start + first,
        token_ids=batch.token_ids[first:last],
        features=batch.features[first:last],
    )
