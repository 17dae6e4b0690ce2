"""A drafter and a verifier without models: they look up what happens and let its time pass."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dspark.decoding.types import (
    DraftBlock,
    DrafterInfo,
    DraftRequest,
    OpenRequest,
    PrefillItem,
    StepResult,
    VerifierInfo,
    VerifyItem,
    VerifyOutcome,
    VerifyStatus,
)
from dspark.errors import StaleEpochError
from dspark.evaluation.simulation.curves import Costs, Machine
from dspark.evaluation.simulation.luck import VOCAB_SIZE, Story
from dspark.rounds.clock import Clock
from dspark.scheduling.surface import StepLoad

_PAGE_SIZE = 16
# Memory is not simulated: no request ever lacks a page.
_NUM_PAGES = 1 << 24
_NS = 1e9


class SimulatedDrafter:
    """A `Drafter` that is ready for every request at once."""

    def __init__(
        self,
        stories: Mapping[str, Story],
        machine: Machine,
        clock: Clock,
        *,
        gamma: int,
        device: asyncio.Lock | None = None,
    ) -> None:
        """Draft from the stories by request id; who shares the device takes turns with it."""
        self._device = device or asyncio.Lock()
        self._stories = stories
        self._costs = Costs(machine)
        self._clock = clock
        self._info = DrafterInfo(
            name=f"simulated on {machine.name}",
            gamma=gamma,
            target_layer_ids=(0,),
            hidden_size=1,
            vocab_size=VOCAB_SIZE,
            draft_cost=machine.draft_cost,
        )

    async def get_info(self) -> DrafterInfo:
        """See `Drafter`."""
        return self._info

    async def draft(self, requests: Sequence[DraftRequest]) -> Sequence[DraftBlock]:
        """See `Drafter`."""
        async with self._device:
            await self._clock.sleep(self._costs.draft_s(sum(one.max_drafts for one in requests)))
        return [_block(one, self._stories[one.request_id]) for one in requests]

    async def close(self, request_ids: Sequence[str]) -> None:
        """See `Drafter`."""


def _block(request: DraftRequest, story: Story) -> DraftBlock:
    start, count = request.base_committed_len - story.request.prompt_len, request.max_drafts
    drafts = story.text[start : start + count].copy()
    wrong = drafts[story.num_right[start] :]
    np.remainder(wrong + 1, VOCAB_SIZE, out=wrong)
    return DraftBlock(
        request.request_id,
        request.epoch,
        request.base_committed_len,
        drafts,
        story.confidence[start, :count],
    )


@dataclass(slots=True)
class _Held:
    """An open request: tokens whose values are fixed, and how many of them were computed."""

    story: Story
    epoch: int
    committed_len: int
    num_computed: int = 0


class SimulatedVerifier:
    """A `Verifier` that judges drafts greedily against the text of the stories."""

    def __init__(
        self,
        stories: Mapping[str, Story],
        machine: Machine,
        clock: Clock,
        *,
        device: asyncio.Lock | None = None,
    ) -> None:
        """Verify against the stories by request id; who shares the device takes turns with it."""
        self._device = device or asyncio.Lock()
        self._stories = stories
        self._costs = Costs(machine)
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._info = VerifierInfo(
            name=f"simulated on {machine.name}",
            vocab_size=VOCAB_SIZE,
            max_context_len=_NUM_PAGES,
            page_size=_PAGE_SIZE,
            num_pages=_NUM_PAGES,
            eos_token_ids=(),
            step_cost=machine.step_cost,
            is_exact=True,
        )
        # parts of requests in all steps so far: verifications and prompt chunks
        self.num_items = 0

    async def get_info(self) -> VerifierInfo:
        """See `Verifier`."""
        return self._info

    async def open(self, request: OpenRequest) -> None:
        """See `Verifier`."""
        held = self._held.get(request.request_id)
        if held is not None and held.epoch > request.epoch:
            raise StaleEpochError(f"request {request.request_id} is open with epoch {held.epoch}")
        story = self._stories[request.request_id]
        self._held[request.request_id] = _Held(story, request.epoch, len(request.token_ids))

    async def step(self, items: Sequence[PrefillItem | VerifyItem]) -> StepResult:
        """See `Verifier`."""
        batch_tokens = sum(map(_num_rows, items))
        contexts = [
            (held.committed_len, _num_rows(one))
            for one in items
            if (held := self._held.get(one.request_id)) is not None
        ]
        num_keys = sum(context for context, _ in contexts)
        num_scores = sum(context * num_rows for context, num_rows in contexts)
        step_s = self._costs.step_s(StepLoad(batch_tokens, num_keys, num_scores))
        async with self._device:
            await self._clock.sleep(step_s)
        self.num_items += len(items)
        outcomes = tuple(map(self._outcome, items))
        return StepResult(outcomes, batch_tokens, round(step_s * _NS), _NUM_PAGES)

    async def close(self, request_ids: Sequence[str]) -> None:
        """See `Verifier`."""
        for request_id in request_ids:
            self._held.pop(request_id, None)

    def _outcome(self, item: PrefillItem | VerifyItem) -> VerifyOutcome:
        held = self._held.get(item.request_id)
        if held is None:
            return VerifyOutcome(item.request_id, item.epoch, 0, VerifyStatus.UNKNOWN)
        base = item.base_committed_len if isinstance(item, VerifyItem) else held.committed_len
        if item.epoch != held.epoch or base != held.committed_len:
            return VerifyOutcome(item.request_id, item.epoch, base, VerifyStatus.STALE)
        if isinstance(item, VerifyItem):
            return _commit(item, held, _num_accepted(item, held))
        held.num_computed += item.num_tokens
        if held.num_computed < held.committed_len:
            return VerifyOutcome(item.request_id, item.epoch, base, VerifyStatus.PREFILLING)
        return _commit(item, held, 0)


def _num_rows(item: PrefillItem | VerifyItem) -> int:
    return item.num_tokens if isinstance(item, PrefillItem) else 1 + len(item.draft_token_ids)


def _num_accepted(item: VerifyItem, held: _Held) -> int:
    """Drafts before the first that the target does not say."""
    drafts = item.draft_token_ids
    if len(drafts) == 0:
        return 0
    start = held.committed_len - held.story.request.prompt_len
    is_wrong = drafts != held.story.text[start : start + len(drafts)]
    return int(is_wrong.argmax()) if is_wrong.any() else len(drafts)


def _commit(item: PrefillItem | VerifyItem, held: _Held, num_accepted: int) -> VerifyOutcome:
    """Append the accepted drafts and the bonus token."""
    base, start = held.committed_len, held.committed_len - held.story.request.prompt_len
    token_ids = tuple(held.story.text[start : start + num_accepted + 1].tolist())
    held.committed_len += len(token_ids)
    return VerifyOutcome(item.request_id, item.epoch, base, VerifyStatus.COMMITTED, num_accepted, token_ids)
