"""Fakes of the peers of the round loop, written once. Their model is a pure function of the tokens so far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dspark.decoding.types import (
    Acceptance,
    DraftBlock,
    DrafterInfo,
    DraftRequest,
    FinishReason,
    GenerationRequest,
    OpenRequest,
    PrefillItem,
    SamplingParams,
    StepCost,
    StepResult,
    StopParams,
    VerifierInfo,
    VerifyItem,
    VerifyOutcome,
    VerifyStatus,
)
from dspark.errors import ServiceUnavailableError, StaleEpochError
from dspark.rounds.stored import StoredRequest

VOCAB_SIZE = 97


def step_costs(*points: tuple[int, float]) -> tuple[StepCost, ...]:
    """Steps of (batch tokens, seconds) that nobody kept the contexts of."""
    return tuple(StepCost(size, seconds) for size, seconds in points)


STEP_COST = step_costs((1, 0.010), (8, 0.011), (64, 0.024), (256, 0.080))


def next_token(tokens: Sequence[int]) -> int:
    """The fake target's choice after these tokens."""
    return (31 * tokens[-1] + 17 * len(tokens) + sum(tokens[-5:])) % VOCAB_SIZE


def continuation(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What plain decoding gives."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def greedy_request(
    request_id: str, prompt: Sequence[int] = (1, 2, 3), max_new_tokens: int = 20, stop: Sequence[int] = ()
) -> GenerationRequest:
    sampling = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)
    return GenerationRequest(request_id, tuple(prompt), sampling, StopParams(max_new_tokens, frozenset(stop)))


class FakeClock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def now(self) -> float:
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        self.time_s += seconds
        await asyncio.sleep(0)


@dataclass
class _Held:
    epoch: int
    tokens: list[int]
    num_computed: int = 0


class FakeVerifier:
    """Greedy target over `next_token` with pages, epochs and failures on demand."""

    def __init__(self, *, num_pages: int = 1000, page_size: int = 4, max_context_len: int = 400) -> None:
        self.info = VerifierInfo(
            name="fake-target",
            vocab_size=VOCAB_SIZE,
            max_context_len=max_context_len,
            page_size=page_size,
            num_pages=num_pages,
            eos_token_ids=(0,),
            step_cost=STEP_COST,
        )
        self.held: dict[str, _Held] = {}
        # taken from the front, one per call: raised instead of the step, or None to let it pass
        self.step_failures: list[Exception | None] = []
        # raised by every call while set
        self.outage: Exception | None = None
        self.steps: list[list[PrefillItem | VerifyItem]] = []
        self.opened: list[OpenRequest] = []
        self.drafter: FakeDrafter | None = None
        # called before each step
        self.on_step: Callable[[int], None] = lambda num_steps: None

    @property
    def num_used_pages(self) -> int:
        return sum(self._pages(held.num_computed) for held in self.held.values())

    def restart(self) -> None:
        """Lose everything, as a new process would."""
        self.held.clear()

    async def get_info(self) -> VerifierInfo:
        self._check_outage()
        return self.info

    async def open(self, request: OpenRequest) -> None:
        self._check_outage()
        held = self.held.get(request.request_id)
        if held is not None and held.epoch > request.epoch:
            raise StaleEpochError(request.request_id)
        self.opened.append(request)
        self.held[request.request_id] = _Held(request.epoch, list(request.token_ids))

    async def close(self, request_ids: Sequence[str]) -> None:
        self._check_outage()
        for request_id in request_ids:
            self.held.pop(request_id, None)

    async def step(self, items: Sequence[PrefillItem | VerifyItem]) -> StepResult:
        self.on_step(len(self.steps))
        await asyncio.sleep(0)
        self._check_outage()
        if self.step_failures and (failure := self.step_failures.pop(0)) is not None:
            raise failure
        assert items, "a step without items"
        self.steps.append(list(items))
        outcomes = tuple(self._outcome(item) for item in items)
        num_tokens = sum(
            item.num_tokens if isinstance(item, PrefillItem) else 1 + len(item.draft_token_ids)
            for item in items
        )
        return StepResult(outcomes, num_tokens, 1000, self.info.num_pages - self.num_used_pages)

    def _check_outage(self) -> None:
        if self.outage is not None:
            raise self.outage

    def _pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.info.page_size)

    def _outcome(self, item: PrefillItem | VerifyItem) -> VerifyOutcome:
        held = self.held.get(item.request_id)
        base = item.base_committed_len if isinstance(item, VerifyItem) else len(held.tokens) if held else 0

        def outcome(status: VerifyStatus, num_accepted: int = 0, token_ids: tuple[int, ...] = ()):
            return VerifyOutcome(item.request_id, item.epoch, base, status, num_accepted, token_ids)

        if held is None:
            return outcome(VerifyStatus.UNKNOWN)
        if held.epoch != item.epoch or base != len(held.tokens):
            return outcome(VerifyStatus.STALE)
        wanted = (
            held.num_computed + item.num_tokens
            if isinstance(item, PrefillItem)
            else len(held.tokens) + len(item.draft_token_ids)
        )
        growth = self._pages(wanted) - self._pages(held.num_computed)
        if self.num_used_pages + growth > self.info.num_pages:
            return outcome(VerifyStatus.OUT_OF_PAGES)
        assert wanted <= self.info.max_context_len, "a step beyond the context"
        start = held.num_computed
        if isinstance(item, PrefillItem):
            assert wanted <= len(held.tokens), "a chunk beyond the committed tokens"
            held.num_computed = wanted
            is_last = wanted == len(held.tokens)
            committed, num_accepted = self._judge(held, ()) if is_last else ((), 0)
            status = VerifyStatus.COMMITTED if is_last else VerifyStatus.PREFILLING
        else:
            assert held.num_computed == len(held.tokens) - 1, "verified before its prefill"
            committed, num_accepted = self._judge(held, item.draft_token_ids.tolist())
            status = VerifyStatus.COMMITTED
        held.tokens.extend(committed)
        if committed:
            held.num_computed = len(held.tokens) - 1
        if self.drafter is not None:
            self.drafter.learn(item.request_id, held.epoch, start, held.num_computed)
        return outcome(status, num_accepted, tuple(committed))

    def _judge(self, held: _Held, drafts: Sequence[int]) -> tuple[list[int], int]:
        tokens = list(held.tokens)
        for num_accepted, draft in enumerate(drafts):
            choice = next_token(tokens)
            tokens.append(choice)
            if draft != choice:
                return tokens[len(held.tokens) :], num_accepted
        tokens.append(next_token(tokens))
        return tokens[len(held.tokens) :], len(drafts)


class FakeDrafter:
    """Drafts right until `num_right`, then wrong. Needs the features of all computed tokens."""

    def __init__(self, verifier: FakeVerifier, *, gamma: int = 4, num_right: int = 3) -> None:
        self.info = DrafterInfo(
            name="fake-drafter",
            gamma=gamma,
            target_layer_ids=(0,),
            hidden_size=8,
            vocab_size=VOCAB_SIZE,
            draft_cost=((1, 0.002), (64, 0.006)),
        )
        self.num_right = num_right
        # whether blocks are said to be copied
        self.copies = False
        self.outage: Exception | None = None
        self.is_hanging = False
        self.calls: list[list[DraftRequest]] = []
        self.closed: set[str] = set()
        # (epoch, features held) by request
        self._known: dict[str, tuple[int, int]] = {}
        self._verifier = verifier
        verifier.drafter = self

    def restart(self) -> None:
        """Lose everything, as a new process would."""
        self._known.clear()

    def learn(self, request_id: str, epoch: int, start: int, end: int) -> None:
        """Take features of positions start..end-1; useless where earlier ones are missing."""
        known_epoch, known = self._known.get(request_id, (0, 0))
        known = known if known_epoch == epoch else 0
        if start <= known:
            self._known[request_id] = (epoch, end)

    async def get_info(self) -> DrafterInfo:
        await self._check_outage()
        return self.info

    async def draft(self, requests: Sequence[DraftRequest]) -> Sequence[DraftBlock]:
        self.calls.append(list(requests))
        await self._check_outage()
        return [self._block(request) for request in requests if self._is_ready(request)]

    async def close(self, request_ids: Sequence[str]) -> None:
        await self._check_outage()
        self.closed.update(request_ids)
        for request_id in request_ids:
            self._known.pop(request_id, None)

    async def _check_outage(self) -> None:
        await asyncio.sleep(0)
        if self.is_hanging:
            await asyncio.Event().wait()
        if self.outage is not None:
            raise self.outage

    def _is_ready(self, request: DraftRequest) -> bool:
        is_held = (
            request.request_id in self._verifier.held
        )  # a verifier that restarts may not hold it any more
        return is_held and self._known.get(request.request_id) == (
            request.epoch,
            request.base_committed_len - 1,
        )

    def _block(self, request: DraftRequest) -> DraftBlock:
        tokens = list(self._verifier.held[request.request_id].tokens)
        assert tokens[-1] == request.anchor_token, "a foreign anchor"
        count = request.max_copied if self.copies else request.max_drafts
        for place in range(count):
            shift = 0 if place < self.num_right else 1
            tokens.append((next_token(tokens) + shift) % VOCAB_SIZE)
        return DraftBlock(
            request.request_id,
            request.epoch,
            request.base_committed_len,
            np.array(tokens[-count:], dtype=np.int32),
            np.where(np.arange(count) < self.num_right, 0.95, 0.3).astype(np.float32),
            is_copied=self.copies,
        )


@dataclass
class FakeStore:
    """Remembers outputs and checks the fence."""

    outputs: dict[str, list[int]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, FinishReason] = field(default_factory=dict)
    requests: dict[str, GenerationRequest] = field(default_factory=dict)
    is_healthy: bool = True
    # tells the owner of a request that it is no longer that
    on_stale: Callable[[str], None] = lambda request_id: None

    def create(self, request: GenerationRequest, epoch: int, output: Sequence[int] = ()) -> None:
        assert epoch > self.epochs.get(request.request_id, 0), "a request by an owner of the past"
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = list(output)
        self.epochs[request.request_id] = epoch
        self.reasons.pop(request.request_id, None)

    async def claim(self, request_id: str, epoch: int) -> StoredRequest | None:
        await asyncio.sleep(0)
        if not self.is_healthy:
            raise ServiceUnavailableError("the store is away")
        if request_id not in self.requests:
            return None
        self.epochs[request_id] = max(epoch, self.epochs[request_id] + 1000)
        output = tuple(self.outputs[request_id])
        return StoredRequest(self.requests[request_id], self.epochs[request_id], output)

    def watch(self, on_stale: Callable[[str], None]) -> None:
        self.on_stale = on_stale

    def commit(self, request_id: str, epoch: int, base_len: int, token_ids: Sequence[int]) -> None:
        if self._is_stale(request_id, epoch):
            return
        assert base_len == len(self.outputs[request_id]), "a commit that does not continue the output"
        self.epochs[request_id] = epoch
        self.outputs[request_id].extend(token_ids)

    def finish(self, request_id: str, epoch: int, reason: FinishReason) -> None:
        if not self._is_stale(request_id, epoch):
            assert request_id not in self.reasons, "finished twice"
            self.reasons[request_id] = reason

    def for_another_owner(self) -> FakeStore:
        """The same store as another process sees it."""
        return replace(self)

    def _is_stale(self, request_id: str, epoch: int) -> bool:
        is_stale = epoch < self.epochs[request_id]
        if is_stale:
            self.on_stale(request_id)
        return is_stale
