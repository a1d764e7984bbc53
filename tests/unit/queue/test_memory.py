import asyncio

import pytest

from dispatcher.errors import LeaseLostError, QueueError
from dispatcher.model import Job, JobId, Tally
from dispatcher.queue.memory import SETTLED_REMEMBERED, MemoryQueue

A = Job(JobId("a"))


@pytest.fixture
def queue(clock):
    return MemoryQueue(clock)


async def test_closing_wakes_who_waits(queue):
    waiter = asyncio.create_task(queue.wait(3600))
    await asyncio.sleep(0)
    queue.close()
    await asyncio.wait_for(waiter, 5)


async def test_nothing_comes_after_the_closing(queue, shards):
    queue.close()
    with pytest.raises(QueueError, match="after the queue was closed"):
        queue.add(A, shards([2])[0])


async def test_a_shard_is_added_once(queue, shards):
    queue.add(A, shards([2])[0])
    with pytest.raises(QueueError, match="in the queue already"):
        queue.add(A, shards([2])[0])


async def test_it_does_not_grow_with_what_is_done(queue, shards, node):
    leases = []
    for shard in shards([1] * (2 * SETTLED_REMEMBERED)):
        queue.add(A, shard)
        leases += await queue.lease(node, 1)
        await queue.settle(node, leases[-1], Tally())
    assert len(queue._settled) == SETTLED_REMEMBERED
    assert not queue._jobs
    await queue.settle(node, leases[-1], Tally())
    with pytest.raises(LeaseLostError):
        await queue.settle(node, leases[0], Tally())
