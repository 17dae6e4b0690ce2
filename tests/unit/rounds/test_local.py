"""Synchronous engines behind the asynchronous interfaces: one thread each, in order."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from dspark.decoding.types import (
    DraftRequest,
    OpenRequest,
    PrefillItem,
    SamplingParams,
    StepResult,
)
from dspark.errors import EngineError, UnknownRequestError
from dspark.rounds.local import EngineWorker, InlineWorker, LocalDrafter, LocalVerifier
from tests.fakes import FakeDrafter, FakeVerifier
from tests.feature_batches import feature_batch

FEATURES = feature_batch("a", 1, 0, np.zeros((2, 4), dtype=np.float32))
REQUEST = DraftRequest("a", 1, 3, 5, SamplingParams(), 4)
OPEN = OpenRequest("a", 1, (1, 2), 2, SamplingParams())


class RecordingEngine:
    """Notes what it was asked, in which thread."""

    def __init__(self, info) -> None:
        self.info = info
        self.calls: list[str] = []
        self.threads: set[str] = set()
        self.failure: Exception | None = None

    def _note(self, name: str) -> None:
        self.calls.append(name)
        self.threads.add(threading.current_thread().name)
        if self.failure is not None:
            raise self.failure


class DraftEngine(RecordingEngine):
    """Drafts nothing."""

    def __init__(self) -> None:
        super().__init__(FakeDrafter(FakeVerifier()).info)

    def push(self, batch):
        self._note(f"push {batch.request_id}")

    def absorb(self):
        self._note("absorb")

    def draft(self, requests):
        self._note("draft")
        return []

    def close(self, request_ids):
        self._note("close")


class TargetEngine(RecordingEngine):
    """Answers every step with the same features."""

    def __init__(self) -> None:
        super().__init__(FakeVerifier().info)

    def open(self, request):
        self._note(f"open {request.request_id}")

    def step(self, items):
        self._note("step")
        return StepResult((), len(items), 5, 9), [FEATURES]

    def close(self, request_ids):
        self._note(f"close {list(request_ids)}")


WORKERS = {
    "one thread each": lambda: None,
    "one thread for both": lambda: EngineWorker("both"),
    "the caller's thread": InlineWorker,
}


@pytest.fixture(params=WORKERS)
def pair(request):
    worker = WORKERS[request.param]()
    drafter = LocalDrafter(DraftEngine(), worker)
    verifier = LocalVerifier(TargetEngine(), drafter, worker=worker)
    yield drafter, verifier
    drafter.shutdown()
    verifier.shutdown()


async def test_features_of_a_step_are_in_place_before_the_next_draft(pair):
    drafter, verifier = pair
    engine = drafter._engine
    for _ in range(20):
        result = await verifier.step([PrefillItem("a", 1, 2)])
        await drafter.draft([REQUEST])
    assert result.batch_tokens == 1
    assert engine.calls == ["push a", "absorb", "draft"] * 20
    assert len(engine.threads) == 1
    is_inline = isinstance(drafter._worker, InlineWorker)
    assert (threading.current_thread().name in engine.threads) == is_inline


async def test_calls_reach_the_engines(pair):
    drafter, verifier = pair
    assert (await verifier.get_info()).name == "fake-target"
    assert (await drafter.get_info()).name == "fake-drafter"
    await verifier.open(OPEN)
    await verifier.close(["a"])
    await drafter.close(["a"])
    assert verifier._engine.calls == ["open a", "close ['a']"]
    assert drafter._engine.calls == ["close"]


async def test_the_event_loop_turns_while_a_thread_runs_the_engine():
    verifier = LocalVerifier(TargetEngine())
    started, go = threading.Event(), threading.Event()

    def slow_step(items):
        started.set()
        assert go.wait(timeout=20)
        return StepResult((), 0, 0, 0), []

    verifier._engine.step = slow_step
    step = asyncio.create_task(verifier.step([]))
    assert await asyncio.to_thread(started.wait, 20)
    assert not step.done()
    go.set()
    await step
    verifier.shutdown()


async def test_other_tasks_have_a_turn_before_each_call_on_their_own_thread():
    verifier = LocalVerifier(TargetEngine(), worker=InlineWorker())
    turns = []

    async def other():
        while True:
            turns.append(len(verifier._engine.calls))
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(3):
        await verifier.step([])
    task.cancel()
    assert turns == [0, 1, 2]


async def test_a_crash_of_the_engine_is_an_engine_error_and_our_own_errors_pass(pair):
    _, verifier = pair
    verifier._engine.failure = RuntimeError("out of memory")
    with pytest.raises(EngineError, match="out of memory"):
        await verifier.step([])
    verifier._engine.failure = UnknownRequestError("who?")
    with pytest.raises(UnknownRequestError):
        await verifier.open(OPEN)


async def test_lost_features_are_borne_and_said(pair, caplog):
    drafter, verifier = pair
    drafter._engine.failure = RuntimeError("no room")
    await verifier.step([])
    with pytest.raises(EngineError):
        await drafter.draft([REQUEST])  # the thread is past the push now
    assert "features were lost: no room" in caplog.text
