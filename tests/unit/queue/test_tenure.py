import pytest

from dispatcher.model import Job, JobId, Lease, NodeId, Shard, Tally
from dispatcher.queue.tenure import Tenure

NODE = NodeId("a")
FIRST, SECOND = (Lease(Job(JobId("j")), Shard(number, 0, 4, 0, 0, ()), 1) for number in range(2))


class Queue:
    """Takes a second to answer."""

    def __init__(self, clock):
        self.clock, self.lost = clock, ()

    async def lease(self, *_):
        self.clock.time += 1
        return [FIRST, SECOND]

    async def renew(self, *_):
        self.clock.time += 1
        return self.lost

    async def settle(self, *_):
        pass

    async def release(self, *_):
        pass


class Clock:
    time = 100.0


@pytest.fixture
async def tenure():
    clock = Clock()
    made = Tenure(Queue(clock), lease_s=60, now=lambda: clock.time)
    made.clock = clock
    await made.lease(NODE, 8)
    return made


def left(tenure):
    return tenure.left_s(FIRST), tenure.left_s(SECOND)


async def test_a_lease_counts_from_before_it_was_asked_for(tenure):
    assert left(tenure) == (59, 59)
    tenure.clock.time += 59
    assert left(tenure) == (0, 0)


async def test_a_renewed_lease_counts_anew_and_a_lost_one_is_over(tenure):
    tenure.clock.time += 20
    tenure._queue.lost = [SECOND]
    assert await tenure.renew(NODE, [FIRST, SECOND]) == [SECOND]
    assert tenure.left_s(FIRST) == 59
    assert tenure.left_s(SECOND) < 0


async def test_a_lease_that_was_given_back_or_settled_is_over(tenure):
    await tenure.release(NODE, [FIRST])
    await tenure.settle(NODE, SECOND, Tally())
    assert max(left(tenure)) < 0
