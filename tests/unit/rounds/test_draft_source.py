"""The drafter as the loop sees it, by the clock."""

from __future__ import annotations

import asyncio

from dspark.decoding.types import DraftRequest, SamplingParams
from dspark.errors import DeadlineError
from dspark.rounds.backoff import Backoff
from dspark.rounds.config import LoopConfig
from dspark.rounds.draft_source import DraftSource
from tests.fakes import FakeClock, FakeDrafter, FakeVerifier

REQUEST = DraftRequest("a", 1, 3, 5, SamplingParams(), 4)


def source(**config) -> tuple[DraftSource, FakeDrafter, FakeClock]:
    drafter, clock = FakeDrafter(FakeVerifier()), FakeClock()
    return (
        DraftSource(drafter, LoopConfig(first_pause_s=1, longest_pause_s=4, **config), clock),
        drafter,
        clock,
    )


def test_pauses_double_up_to_the_longest_and_vanish_with_a_success():
    backoff = Backoff(1, 5)
    assert [backoff.fail(10) for _ in range(4)] == [1, 2, 4, 5]
    assert not backoff.is_open(14.9)
    assert backoff.is_open(15)
    backoff.succeed()
    assert backoff.is_open(0)
    assert backoff.fail(0) == 1


async def test_a_failed_drafter_is_left_alone_for_its_pause():
    drafts, drafter, clock = source()
    await drafts.connect()
    assert drafts.is_ready
    assert drafts.take_news()
    assert not drafts.take_news()
    drafter.outage = DeadlineError("late")
    assert await drafts.draft([REQUEST]) is None
    assert not drafts.is_ready
    drafter.outage = None
    await drafts.connect()
    assert not drafts.is_ready, "too early"
    clock.time_s += 1
    await drafts.connect()
    assert drafts.is_ready
    assert await drafts.draft([REQUEST]) == []


async def test_work_is_done_while_the_drafter_is_at_it_and_whether_or_not_it_answers():
    drafts, drafter, _ = source()
    await drafts.connect()
    seen = []
    assert await drafts.draft([REQUEST], lambda: seen.append(len(drafter.calls))) == []
    assert seen == [1], "asked first"
    drafter.outage = DeadlineError("late")
    assert await drafts.draft([REQUEST], lambda: seen.append(len(drafter.calls))) is None
    assert seen == [1, 2]


async def test_a_drafter_that_hangs_is_given_up_on_with_work_beside_it():
    drafts, drafter, _ = source(draft_timeout_s=0.02)
    await drafts.connect()
    drafter.is_hanging = True
    assert await drafts.draft([REQUEST], lambda: None) is None
    assert drafts.num_failures == 1
    assert len(asyncio.all_tasks()) == 1, "no call is left behind"


async def test_releases_that_fail_are_passed_on_later_unless_the_request_came_back():
    drafts, drafter, clock = source()
    await drafts.connect()
    drafts.release("a")
    drafts.release("b")
    drafter.outage = DeadlineError("late")
    await drafts.flush()
    assert drafter.closed == set()
    drafter.outage = None
    clock.time_s += 1
    await drafts.connect()
    drafts.keep("a")
    await drafts.flush()
    assert drafter.closed == {"b"}


async def test_no_drafter_means_no_drafts_and_nothing_to_release():
    drafts = DraftSource(None, LoopConfig(), FakeClock())
    await drafts.connect()
    drafts.connect_in_background()
    drafts.release("a")
    await drafts.flush()
    assert await drafts.draft([REQUEST]) is None
    assert not drafts.is_ready
    assert not drafts.is_wanted
