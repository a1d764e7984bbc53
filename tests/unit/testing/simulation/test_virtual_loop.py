import asyncio
import time

import pytest

from dispatcher.testing.simulation.virtual_loop import (
    WALL_AT_START,
    DeadlockError,
    VirtualClock,
    VirtualTimeError,
    run_virtually,
)


def now():
    return asyncio.get_running_loop().time()


def test_a_month_of_sleep_takes_no_time_and_ends_exactly():
    async def main():
        await asyncio.sleep(30 * 86_400)
        return now()

    began = time.monotonic()
    assert run_virtually(main()) == 30 * 86_400
    assert time.monotonic() - began < 5


def test_timers_ring_in_order_and_each_at_its_own_time():
    rung = []

    async def main():
        loop = asyncio.get_running_loop()
        for at in (3.0, 1.0, 2.0):
            loop.call_at(at, lambda: rung.append(now()))
        await asyncio.sleep(4)

    run_virtually(main())
    assert rung == [1.0, 2.0, 3.0]


def test_a_timeout_ends_exactly_at_its_time():
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await asyncio.Event().wait()
        return now()

    assert run_virtually(main()) == 2.5


def test_a_task_group_waits_for_all_and_cancels_the_rest_when_one_fails():
    ended = []

    async def sleeper(seconds):
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append((seconds, now()))

    async def failing():
        await asyncio.sleep(2)
        raise ValueError

    async def main():
        async with asyncio.TaskGroup() as tasks:
            for seconds in (5, 1, 9, 7):
                tasks.create_task(sleeper(seconds))
            tasks.create_task(failing())

    with pytest.raises(ExceptionGroup):
        run_virtually(main())
    assert ended == [(1, 1.0), (5, 2.0), (9, 2.0), (7, 2.0)]


def test_what_is_given_to_a_thread_runs_at_once_and_raises_where_it_is_awaited():
    async def main():
        assert await asyncio.to_thread(lambda: 5) == 5
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return now()

    assert run_virtually(main()) == 0.0


def test_a_deadlock_is_found_and_names_who_waits():
    async def main():
        waits = asyncio.create_task(asyncio.Event().wait(), name="the one who waits")
        await waits

    with pytest.raises(DeadlockError, match="the one who waits"):
        run_virtually(main())


def test_a_cancelled_timer_keeps_nobody_from_a_deadlock():
    async def main():
        asyncio.get_running_loop().call_later(5, print).cancel()
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        run_virtually(main())


def test_what_goes_on_for_ever_comes_to_an_end():
    async def main():
        loop = asyncio.get_running_loop()

        def again():
            loop.call_later(86_400, again)

        again()
        await asyncio.Event().wait()

    with pytest.raises(VirtualTimeError):
        run_virtually(main())


def test_tasks_have_their_names_and_are_gone_after_the_end():
    seen = []

    async def main():
        task = asyncio.create_task(asyncio.sleep(100), name="left over")
        seen.append(task)
        await asyncio.sleep(0)
        return asyncio.get_running_loop().waiting()

    assert "left over" in run_virtually(main())
    assert seen[0].cancelled()


def test_the_wall_clock_jumps_and_the_monotonic_one_does_not():
    async def main():
        clock = VirtualClock(asyncio.get_running_loop())
        await clock.sleep(2)
        clock.jump(-100)
        return clock.now(), clock.wall() - WALL_AT_START

    assert run_virtually(main()) == (2.0, -98.0)
