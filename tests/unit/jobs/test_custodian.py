"""The jobs that this node drives, where the database is away or another node is quicker."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from queue_worlds import VirtualClock

from dispatcher.errors import CustodyLostError, JobMovedError, QueueUnreachableError
from dispatcher.jobs.custodian import LOOK_S, Custodian
from dispatcher.model import JobId, NodeId
from dispatcher.queue.custody import Custody

A, NODE = JobId("a"), NodeId("n")
HELD = Custody(A, NODE, 1)
LEASE_S = 30.0


class FakeCustodies:
    """One job, which is the node's. `fault` is what renewing and retiring meet."""

    def __init__(self, clock):
        self.clock = clock
        self.fault = None
        self.renewed_at = []
        self.lost = []

    async def take(self, node, job):
        return Custody(job, node, 1)

    async def take_free(self, _node, _want):
        return []

    async def renew(self, _held):
        self.renewed_at.append(self.clock.now() - 1000)
        if self.fault is not None:
            raise self.fault
        return self.lost

    async def retire(self, _held, _details):
        if self.fault is not None:
            raise self.fault


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def custodies(clock):
    return FakeCustodies(clock)


@pytest.fixture
async def custodian(custodies, clock):
    made = Custodian(
        custodies, NODE, clock, LEASE_S, took=lambda _custody: None, lost=custodies.renewed_at.append
    )
    await made.take(A)
    return made


@asynccontextmanager
async def running(custodian, clock, seconds):
    task = asyncio.create_task(custodian.run())
    for _ in range(int(seconds / LOOK_S)):
        for _ in range(5):
            await asyncio.sleep(0)
        clock.advance(LOOK_S)
    yield
    task.cancel()


async def test_custody_is_renewed_three_times_in_its_time(custodian, custodies, clock):
    async with running(custodian, clock, 31):
        assert custodies.renewed_at == [10, 20, 30]


async def test_a_renewal_that_failed_is_tried_again_at_the_next_look(custodian, custodies, clock):
    custodies.fault = QueueUnreachableError("away")
    async with running(custodian, clock, 14):
        assert custodies.renewed_at == [10, 11, 12, 13]
        assert custodian.held == {A: HELD}


async def test_a_defect_does_not_end_the_looks(custodian, custodies, clock):
    custodies.fault = RuntimeError("a defect")
    async with running(custodian, clock, 12):
        assert custodies.renewed_at == [10, 11]


async def test_a_job_that_goes_on_is_kept(custodian, custodies):
    custodies.fault = JobMovedError("it goes on")
    assert not await custodian.retire(A, {})
    assert custodian.held == {A: HELD}


@pytest.mark.parametrize("fault", [None, CustodyLostError("another has")])
async def test_a_job_that_has_ended_is_held_no_more(custodian, custodies, fault):
    custodies.fault = fault
    assert await custodian.retire(A, {})
    assert custodian.held == {}
