"""The event loop whose time jumps: order of events, and that nothing waits for real."""

from __future__ import annotations

import asyncio
import time

import pytest

from dspark.evaluation.simulation.clock import VirtualClock, run_in_virtual_time

CLOCK = VirtualClock()


def test_sleepers_wake_in_the_order_of_their_moments_and_each_at_its_own():
    woken = []

    async def sleeper(name: str, seconds: float) -> None:
        await CLOCK.sleep(seconds)
        woken.append((name, CLOCK.now()))

    async def main() -> None:
        await asyncio.gather(sleeper("late", 3.0), sleeper("early", 0.5), sleeper("middle", 2.25))

    run_in_virtual_time(main())
    assert [name for name, _ in woken] == ["early", "middle", "late"]
    assert [at_s for _, at_s in woken] == pytest.approx([0.5, 2.25, 3.0])


def test_sleepers_of_one_moment_all_wake_then_and_in_the_same_order_in_every_run():
    orders = []
    for _ in range(2):
        woken = []

        async def sleeper(name: int, woken: list[tuple[int, float]]) -> None:
            await CLOCK.sleep(1.0)
            woken.append((name, CLOCK.now()))

        async def main(woken: list[tuple[int, float]]) -> None:
            await asyncio.gather(*(sleeper(name, woken) for name in range(50)))

        run_in_virtual_time(main(woken))
        assert len({at_s for _, at_s in woken}) == 1
        orders.append([name for name, _ in woken])
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(50))


def test_time_stands_still_while_a_task_is_ready():
    async def main() -> None:
        asyncio.get_running_loop().call_later(1e-6, pytest.fail, "time went on")
        for _ in range(1000):
            await asyncio.sleep(0)
            assert CLOCK.now() == 0.0
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_in_virtual_time(main())


def test_a_year_takes_no_time():
    async def main() -> None:
        await CLOCK.sleep(365 * 86400.0)
        assert CLOCK.now() == pytest.approx(365 * 86400.0)

    started = time.perf_counter()
    run_in_virtual_time(main())
    assert time.perf_counter() - started < 1.0


def test_timeouts_are_virtual_too():
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60.0):
                await CLOCK.sleep(61.0)
        assert CLOCK.now() == pytest.approx(60.0)

    run_in_virtual_time(main())


def test_waiting_for_what_never_comes_is_a_mistake_that_is_told():
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="every task waits"):
        run_in_virtual_time(main())
