"""Queues as tests use them: their time is the test's."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from dispatcher.model import Job, JobId, NodeId, Shard
from dispatcher.queue.memory import MemoryQueue
from dispatcher.queue.sql import open_queue

LEASE_S = 60.0


class VirtualClock:
    """Time that passes only when the test says so."""

    def __init__(self):
        self.time = 1000.0
        self._sleepers = []

    def now(self):
        return self.time

    def wall(self):
        return self.time

    async def sleep(self, seconds):
        woken = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.time + seconds, woken))
        await woken

    def advance(self, seconds):
        self.time += seconds
        for due, woken in self._sleepers:
            if due <= self.time and not woken.done():
                woken.set_result(None)


def cut(counts, first_number=0, first_index=0):
    """Shards of these many lines, one after the other, ten bytes a line."""
    shards = []
    for number, count in enumerate(counts, first_number):
        shards.append(Shard(number, first_index, count, first_index * 10, count * 10))
        first_index += count
    return shards


class SqlWorld:
    """A queue in a file, with jobs that are active as soon as they have shards."""

    def __init__(self, queue, clock):
        self.queue = queue
        self.clock = clock

    async def add(self, job_id, shards, **knobs):
        self.clock.advance(1)
        await self.queue.create_job(Job(JobId(job_id)), {}, **knobs)
        await self.queue.add_shards(JobId(job_id), shards)
        await self.queue.activate(JobId(job_id))


class MemoryWorld:
    """A queue in memory."""

    def __init__(self, queue, clock):
        self.queue = queue
        self.clock = clock

    async def add(self, job_id, shards):
        for shard in shards:
            self.queue.add(Job(JobId(job_id)), shard)


@asynccontextmanager
async def open_world(kind, directory, empty_database):
    clock = VirtualClock()
    if kind == "memory":
        yield MemoryWorld(MemoryQueue(clock, LEASE_S), clock)
        return
    (directory / "queue.db").write_bytes(empty_database)
    async with open_queue(directory / "queue.db", clock, lease_s=LEASE_S) as queue:
        yield SqlWorld(queue, clock)


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def shards():
    return cut


@pytest.fixture
def node():
    return NodeId("node-a")


@pytest.fixture
def other():
    return NodeId("node-b")
