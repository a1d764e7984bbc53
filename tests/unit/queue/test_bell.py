import asyncio

import pytest

from dispatcher.queue.bell import Bell


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_ring_wakes_all_who_wait(clock):
    bell = Bell(clock)
    waiters = [asyncio.create_task(bell.wait(3600)) for _ in range(3)]
    await settled()
    bell.ring()
    await asyncio.wait_for(asyncio.gather(*waiters), 5)


async def test_a_ring_is_heard_once(clock):
    bell = Bell(clock)
    bell.ring()
    bell.ring()
    await bell.wait(3600)
    waiter = asyncio.create_task(bell.wait(3600))
    await settled()
    assert not waiter.done()
    bell.ring()
    await waiter


async def test_a_cancelled_waiter_leaves_no_alarm_behind(clock):
    bell = Bell(clock)
    before = asyncio.all_tasks()
    waiter = asyncio.create_task(bell.wait(5))
    await settled()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert asyncio.all_tasks() == before


async def test_a_waiter_that_was_rung_leaves_no_alarm_behind(clock):
    bell = Bell(clock)
    before = asyncio.all_tasks()
    bell.ring()
    await bell.wait(5)
    assert asyncio.all_tasks() == before
