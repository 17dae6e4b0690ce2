"""When a full queue has room again."""

from __future__ import annotations

import pytest
from loop_rig import Rig, read

from dspark.errors import OverloadedError
from dspark.rounds.service_time import ServiceTime
from tests.fakes import greedy_request

pytestmark = pytest.mark.timeout(20)


def test_the_wait_is_the_service_time_of_all_that_come_before_over_those_that_run_at_once():
    service = ServiceTime()
    service.observe(6.0)
    assert service.wait_s(num_waiting=7, num_running=4) == 12.0
    assert service.wait_s(num_waiting=0, num_running=0) == 6.0


def test_the_mean_follows_what_requests_take_now():
    service = ServiceTime()
    service.observe(10.0)
    for _ in range(50):
        service.observe(2.0)
    assert service.mean_s == pytest.approx(2.0, abs=0.01)


async def test_a_full_queue_says_when_it_will_have_room_from_what_it_measured():
    rig = Rig(has_drafter=False, max_running=1, max_waiting=2)

    def take_half_a_second(num_steps: int) -> None:
        rig.clock.time_s += 0.5

    rig.verifier.on_step = take_half_a_second
    async with rig.running() as loop:
        await read(loop.submit(greedy_request("first", max_new_tokens=10)))
        streams = [loop.submit(greedy_request(name, max_new_tokens=300)) for name in "abc"]
        await anext(streams[0])
        with pytest.raises(OverloadedError) as caught:
            loop.submit(greedy_request("d"))
        # Ten tokens took five seconds; two wait for the one place before a newcomer does.
        assert caught.value.retry_after_s == pytest.approx(15.0)
        for stream in streams:
            await stream.aclose()
