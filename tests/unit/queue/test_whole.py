import asyncio

import pytest

from dispatcher.queue.whole import whole


async def test_it_returns_and_raises_as_the_function_does():
    @whole
    async def divide(number, by):
        return number / by

    assert await divide(6, by=2) == 3
    with pytest.raises(ZeroDivisionError):
        await divide(1, by=0)


@pytest.mark.parametrize("cancellations", [1, 3])
async def test_a_cancelled_caller_is_told_when_the_work_has_ended(cancellations):
    go_on = asyncio.Event()
    ended = []

    @whole
    async def work():
        await go_on.wait()
        ended.append(True)

    caller = asyncio.create_task(work())
    for _ in range(cancellations):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended == [True]


async def test_what_went_wrong_after_a_cancellation_is_its_cause():
    go_on = asyncio.Event()

    @whole
    async def work():
        await go_on.wait()
        raise ZeroDivisionError

    caller = asyncio.create_task(work())
    await asyncio.sleep(0)
    caller.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await caller
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
