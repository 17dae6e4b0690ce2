"""What the drafter remembers of each request: context keys and values in pages, and features to come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dspark.decoding.types import DraftRequest, FeatureBatch
from dspark.engine.pages import PagePool
from dspark.engine.past_blocks import PastBlock

Words = npt.NDArray[np.generic]


@dataclass(slots=True)
class DraftContext:
    """The context of one request: positions start .. start + num_computed in pages, then `pending`.

    The token ids of all these positions are kept, so what stands before the anchor is known.

    A drafter that lost its past starts at a later position; it then sees less context and drafts a little
    worse, which costs speed and never correctness.
    """

    epoch: int
    # absolute position of the first feature
    start: int
    # rows whose keys and values are in the pages
    num_computed: int = 0
    pages: list[int] = field(default_factory=list)
    # of the positions start .. end
    token_ids: list[int] = field(default_factory=list)
    # rows that arrived since, each [t, L*H] as words of `dspark.engine.taps`
    pending: list[Words] = field(default_factory=list)
    # their sum
    num_pending: int = 0
    last_used: int = 0
    # drafted for since features were last absorbed: the next draft will most likely want them
    is_in_use: bool = False
    last_block: PastBlock | None = None

    def add(self, batch: FeatureBatch) -> None:
        """Keep rows and token ids that follow on what is here."""
        self.token_ids += batch.token_ids.tolist()
        self.pending.append(batch.features)
        self.num_pending += len(batch.features)

    def settle(self, num_computed: int, pending: Sequence[Words] = ()) -> None:
        """Hold so many rows in pages, and those that wait."""
        self.num_computed, self.pending = num_computed, list(pending)
        self.num_pending = sum(len(rows) for rows in self.pending)

    @property
    def end(self) -> int:
        """Absolute position after the last feature that has arrived."""
        return self.start + self.num_computed + self.num_pending


@dataclass(frozen=True, slots=True)
class ContextSpan:
    """Rows first .. last of a context, counted from its start."""

    context: DraftContext
    first: int
    last: int


class ContextTable:
    """The contexts of all requests over one page pool."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._contexts: dict[str, DraftContext] = {}
        self._clock = 0

    def __len__(self) -> int:
        return len(self._contexts)

    def held(self) -> list[DraftContext]:
        """All contexts."""
        return list(self._contexts.values())

    def push(self, batch: FeatureBatch) -> None:
        """Take features; an older epoch is dropped, a newer one or a gap starts the context anew."""
        context = self._contexts.get(batch.request_id)
        if context is not None and batch.epoch < context.epoch:
            return
        if context is None or batch.epoch > context.epoch or not context.start <= batch.start <= context.end:
            self.close([batch.request_id])
            context = self._contexts[batch.request_id] = DraftContext(batch.epoch, batch.start)
        elif batch.start < context.end:
            _truncate(context, batch.start)
        context.add(batch)

    def ready(self, request: DraftRequest) -> DraftContext | None:
        """The context, if it ends exactly before the anchor of the request."""
        context = self._contexts.get(request.request_id)
        if context is None or context.epoch != request.epoch:
            return None
        if context.end != request.base_committed_len - 1:
            return None
        return context

    def reserve(self, context: DraftContext, num_tokens: int, keep: Iterable[DraftContext]) -> bool:
        """Give the context pages for `num_tokens` tokens, evicting idle contexts if it must.

        Args:
            context: to grow.
            num_tokens: tokens its pages must hold.
            keep: contexts that must stay.

        Returns:
            False where even eviction does not free enough.
        """
        wanted = -(-num_tokens // self._pool.page_size) - len(context.pages)
        if wanted > self._pool.num_free:
            self._evict(wanted, {id(one) for one in keep})
        if wanted > self._pool.num_free:
            return False
        if wanted > 0:
            context.pages += self._pool.allocate(wanted)
        self._clock += 1
        context.last_used = self._clock
        return True

    def _evict(self, wanted: int, keep: set[int]) -> None:
        idle = [name for name, one in self._contexts.items() if id(one) not in keep]
        for name in sorted(idle, key=lambda one: self._contexts[one].last_used):
            if self._pool.num_free >= wanted:
                return
            self.close([name])

    def close(self, request_ids: Iterable[str]) -> None:
        """Forget these requests; unknown ones are ignored."""
        for request_id in request_ids:
            context = self._contexts.pop(request_id, None)
            if context is not None:
                self._pool.free(context.pages)


def _truncate(context: DraftContext, position: int) -> None:
    """Drop what stands from the absolute `position` on (the verifier computed it again)."""
    keep = position - context.start
    del context.token_ids[keep:]
    if keep <= context.num_computed:
        context.settle(keep)
        return
    rows = np.concatenate(context.pending)[: keep - context.num_computed]
    context.settle(context.num_computed, [rows])
