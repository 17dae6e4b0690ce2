"""One `ready` line, when the verifier is."""

from __future__ import annotations

import asyncio
import logging

import pytest

from dspark.errors import ServiceUnavailableError
from gateway.readiness import watch_scheduler
from tests.unit.gateway.gateway_fakes import FakeBackend, FakeInfo, make_edge, says


class Loading(FakeBackend):
    """Not there, then loading, then ready, then with another drafter; then the test has seen enough."""

    def __init__(self) -> None:
        super().__init__(says("x"))
        self.answers: list[FakeInfo | BaseException] = [
            ServiceUnavailableError("down"),
            FakeInfo(is_verifier_ready=False),
            FakeInfo(drafter_name="", gamma=0),
            FakeInfo(gamma=5),
        ]
        self.is_done = asyncio.Event()

    async def get_info(self) -> FakeInfo:
        if not self.answers:
            self.is_done.set()
            await asyncio.Event().wait()
        self.info = self.answers.pop(0)
        return await super().get_info()


async def test_ready_is_logged_once_and_a_drafter_that_comes_later_is_noticed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = Loading()
    edge = make_edge(backend)
    with caplog.at_level(logging.INFO, "gateway"):
        watching = asyncio.create_task(
            watch_scheduler(edge, "http://127.0.0.1:1", loading_poll_s=0, poll_s=0)
        )
        await backend.is_done.wait()
        watching.cancel()
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("ready ")]
    assert lines == ["ready http://127.0.0.1:1 serving tiny (tiny, no drafter)"]
    assert edge.gamma() == 5
