"""The store of request state: what must outlive a process. The loop enqueues, one task writes.

Rounds never wait for it. A store that is away costs nothing but the state it misses, and it catches up when
it comes back, also when it comes back empty.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from dspark.decoding.types import FinishReason, GenerationRequest
from dspark.rounds.stored import StoredRequest
from services.scheduler.breaker import CircuitBreaker
from services.scheduler.store_claim import RequestClaims
from services.scheduler.store_record import Record, StoreConfig, Write
from services.scheduler.store_schema import COMMIT_SCRIPT, CREATE_SCRIPT, WriteResult, request_keys

_log = logging.getLogger(__name__)

# Requests of one pipeline, so that a store that was away for long is not asked for all at once.
_MAX_BATCH = 256
# Pause after a failed write while the breaker is still closed.
_RETRY_PAUSE_S = 0.05
# How often an idle writer asks whether the store still answers.
_PROBE_S = 2.0
# How long the last writes may take when the process ends.
_CLOSE_TIMEOUT_S = 1.0


@dataclass(slots=True)
class StoreStats:
    """Sums since start."""

    num_flushes: int = 0
    num_writes: int = 0
    num_failures: int = 0
    # writes that found another owner
    num_stale: int = 0
    # requests written anew because the store had lost or confused them
    num_recreated: int = 0
    # requests dropped unwritten because too many waited
    num_dropped: int = 0


class RedisStore:
    """Implements `dspark.rounds.interfaces.RequestStore` over a server of the Redis protocol.

    `create`, `commit` and `finish` only note what is to be written; `run` writes it, all requests of a round
    in one pipeline. Belongs to one event loop.

    Attributes:
        stats: counters.
    """

    def __init__(
        self,
        client: Redis,
        *,
        now: Callable[[], float],
        config: StoreConfig | None = None,
    ) -> None:
        """Make a store.

        Args:
            client: as `open_store_client` makes it; closed by `close`.
            now: monotonic clock in seconds.
            config: times to live and bounds.
        """
        self._client = client
        self._config = config or StoreConfig()
        self._claims = RequestClaims(client)
        self._on_stale: Callable[[str], None] = lambda request_id: None
        self._breaker = CircuitBreaker(now)
        self._records: dict[str, Record] = {}
        # In order of their first unwritten change; a dict as an ordered set.
        self._dirty: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._is_closing = False
        self._writer: asyncio.Task[None] | None = None
        self._scripts: dict[bool, str] = {}
        self._is_healthy = False
        self.stats = StoreStats()

    @property
    def is_healthy(self) -> bool:
        """Whether the last write or probe reached the store."""
        return self._is_healthy

    def watch(self, on_stale: Callable[[str], None]) -> None:
        """Tell of requests that were taken over; see `RequestStore`."""
        self._on_stale = on_stale

    async def claim(self, request_id: str, epoch: int) -> StoredRequest | None:
        """Take a request over; see `RequestStore`."""
        # Whatever we once knew of it, the store and the caller know better.
        self._forget(request_id)
        return await self._claims.claim(request_id, epoch)

    def create(self, request: GenerationRequest, epoch: int, output: Sequence[int] = ()) -> None:
        """Record a request; see `RequestStore`."""
        if len(self._records) >= self._config.max_records:
            self._drop_one()
        self._records[request.request_id] = Record(request, epoch, list(output))
        self._mark(request.request_id)

    def commit(self, request_id: str, epoch: int, base_len: int, token_ids: Sequence[int]) -> None:
        """Append committed tokens; see `RequestStore`."""
        record = self._records.get(request_id)
        if record is None:
            return
        if base_len != len(record.output) or record.epoch > epoch:
            _log.error(
                "commit of %s at %d does not continue the %d tokens known",
                request_id,
                base_len,
                len(record.output),
            )
            return
        record.epoch = epoch
        record.output.extend(token_ids)
        self._mark(request_id)

    def finish(self, request_id: str, epoch: int, reason: FinishReason) -> None:
        """Record the end; see `RequestStore`."""
        record = self._records.get(request_id)
        if record is None:
            return
        record.epoch = max(record.epoch, epoch)
        record.finish_reason = reason
        self._mark(request_id)

    async def run(self) -> None:
        """Write what is noted, until `close`."""
        self._writer = asyncio.current_task()
        while not self._is_closing:
            await self._attempt()
            if self._is_healthy:
                await self._wait_for_work()
            else:
                await self._pause(self._breaker.pause_s or _RETRY_PAUSE_S)

    async def close(self) -> None:
        """Write what is left, as far as that is quick, and disconnect."""
        self._is_closing = True
        self._wake.set()
        if self._writer is not None:
            # A command is never cancelled half-way, or its reply would be taken for that of the next one.
            await asyncio.wait({self._writer}, timeout=_CLOSE_TIMEOUT_S)
        with suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                while self._dirty:
                    await self._flush()
        await self._client.aclose()

    async def _wait_for_work(self) -> None:
        if not self._dirty and not self._is_closing:
            await self._pause(_PROBE_S)

    async def _pause(self, seconds: float) -> None:
        """Wait until woken: by work while the store is healthy, else by `close` alone."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    self._wake.clear()
                    await self._wake.wait()
                    if self._is_healthy or self._is_closing:
                        return

    async def _attempt(self) -> None:
        """One flush or probe; notes how it went."""
        try:
            if self._dirty:
                await self._flush()
            else:
                await self._client.ping()
        except (RedisError, OSError, TimeoutError) as error:
            self._breaker.fail()
            self.stats.num_failures += 1
            if self._is_healthy or self.stats.num_failures == 1:
                _log.warning("the store is away, streams go on without it: %s", error)
            self._is_healthy = False
            return
        if not self._is_healthy:
            _log.info("the store takes writes")
        self._breaker.succeed()
        self._is_healthy = True

    async def _flush(self) -> None:
        """Bring the store up to date with the requests that waited longest."""
        if not self._scripts:
            create, commit = [
                await self._client.script_load(script) for script in (CREATE_SCRIPT, COMMIT_SCRIPT)
            ]
            self._scripts = {True: str(create), False: str(commit)}
        batch = [(request_id, self._records[request_id]) for request_id in list(self._dirty)[:_MAX_BATCH]]
        writes = [record.next_write(self._config) for _, record in batch]
        async with self._client.pipeline(transaction=False) as pipeline:
            for (request_id, _), write in zip(batch, writes, strict=True):
                keys = request_keys(request_id)
                pipeline.evalsha(self._scripts[write.is_create], len(keys), *keys, *write.arguments)
            replies = await pipeline.execute(raise_on_error=False)
        self.stats.num_flushes += 1
        self.stats.num_writes += len(writes)
        errors = [
            error
            for (request_id, record), write, reply in zip(batch, writes, replies, strict=True)
            if (error := self._apply(request_id, record, write, reply)) is not None
        ]
        if any(isinstance(error, NoScriptError) for error in errors):
            # It restarted: load the scripts again, at once.
            self._scripts = {}
        elif errors:
            raise errors[0]

    def _apply(self, request_id: str, record: Record, write: Write, reply: Any) -> ResponseError | None:
        """Take note of one reply; returns the error of a write the server did not take."""
        if isinstance(reply, ResponseError):
            return reply
        if self._records.get(request_id) is not record:
            # Replaced or dropped while the write was on its way.
            return None
        result = WriteResult(reply[0])
        if result is WriteResult.OK:
            record.note_stored(write)
        elif result is WriteResult.STALE_EPOCH:
            self.stats.num_stale += 1
            _log.warning("another scheduler has taken over %s", request_id)
            self._forget(request_id)
            self._on_stale(request_id)
            return None
        else:
            self.stats.num_recreated += 1
            record.note_missing()
        if record.is_stored:
            self._dirty.pop(request_id, None)
            if record.finish_reason is not None:
                self._forget(request_id)
        return None

    def _mark(self, request_id: str) -> None:
        self._dirty.setdefault(request_id)
        self._wake.set()

    def _forget(self, request_id: str) -> None:
        self._records.pop(request_id, None)
        self._dirty.pop(request_id, None)

    def _drop_one(self) -> None:
        finished = (name for name, record in self._records.items() if record.finish_reason is not None)
        self._forget(next(finished, next(iter(self._records))))
        self.stats.num_dropped += 1
