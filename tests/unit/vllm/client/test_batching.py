"""Many at a time, in order."""

import asyncio
from itertools import count

import pytest

from dispatcher.vllm.client.batching import in_order


async def test_results_are_in_the_order_of_their_items_whatever_ended_first():
    async def work(number):
        await asyncio.sleep(0.001 * (5 - number % 5))
        return number

    assert await in_order(range(20), work, 7) == list(range(20))
    assert await in_order([], work, 7) == []


async def test_no_more_than_the_limit_are_at_work_and_items_are_taken_when_their_turn_comes():
    taken, working, peak = 0, 0, 0

    def items():
        nonlocal taken
        for number in range(50):
            taken += 1
            yield number

    async def work(number):
        nonlocal working, peak
        working += 1
        peak = max(peak, working)
        assert taken <= number + 5
        await asyncio.sleep(0)
        working -= 1

    await in_order(items(), work, 4)
    assert peak == 4


async def test_the_first_error_is_raised_as_it_is_and_ends_the_rest():
    ended = []

    async def work(number):
        try:
            if number == 2:
                raise LookupError("two")
            await asyncio.sleep(60)
        finally:
            ended.append(number)

    with pytest.raises(LookupError, match="two"):
        await in_order(count(), work, 5)
    assert sorted(ended) == [0, 1, 2, 3, 4][: len(ended)]


async def test_an_error_of_the_callers_iterator_is_raised_as_it_is():
    def items():
        yield 1
        raise LookupError("the database is gone")

    async def work(_):
        await asyncio.sleep(60)

    with pytest.raises(LookupError, match="database"):
        await in_order(items(), work, 5)
