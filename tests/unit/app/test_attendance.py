"""One service at a time on a shared queue."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from queue_worlds import VirtualClock

from dispatcher.app.attendance import Attendance
from dispatcher.errors import StateError, StoppedError
from dispatcher.model import Job, JobId, NodeId, Shard
from dispatcher.queue.nodes import NodeFigures, NodeIdentity, NodeState
from dispatcher.queue.sql import open_queue

SILENCE_S = 60.0
OURS = NodeIdentity(NodeId("ours"), "gpu1", 17, "0.1.0")
OTHER = NodeIdentity(NodeId("another"), "gpu2", 18, "0.1.0")


class World:
    def __init__(self, queue, clock):
        self.queue = queue
        self.clock = clock
        self.figures = NodeFigures()
        self.displaced = 0

    def attendance(self, identity=OURS):
        return Attendance(
            self.queue.nodes, identity, self.clock, SILENCE_S, lambda: self.figures, self._count
        )

    def _count(self):
        self.displaced += 1

    async def names(self):
        return [record.identity.id for record in await self.queue.nodes.list()]

    async def pass_time(self, seconds, task=None):
        """Second by second, and between them whatever is due is done."""
        for _ in range(seconds):
            self.clock.advance(1)
            for _ in range(5):
                await self.names()
            if task is not None and task.done():
                return


@pytest.fixture
async def world(tmp_path):
    clock = VirtualClock()
    async with open_queue(tmp_path / "queue.sqlite", clock, lease_s=SILENCE_S) as queue:
        yield World(queue, clock)


@asynccontextmanager
async def coming(world):
    """A service that comes in, as a task; it stays until the context ends."""
    enough = asyncio.Event()

    async def stay():
        async with world.attendance().alone():
            came.set()
            await enough.wait()

    came = asyncio.Event()
    task = asyncio.create_task(stay())
    task.came = came
    try:
        yield task
    finally:
        enough.set()
        if not came.is_set():
            task.cancel()
        await asyncio.wait([task])


async def test_a_service_that_is_alone_comes_in_at_once_and_leaves_the_list_when_it_goes(world):
    async with world.attendance().alone():
        assert await world.names() == [OURS.id]
    assert await world.names() == []


async def test_a_service_tells_its_figures_three_times_in_the_time_of_silence(world):
    async with world.attendance().alone():
        world.figures = NodeFigures(in_flight=7, shards_leased=3)
        await world.names()
        await world.pass_time(20)
        (record,) = await world.queue.nodes.list()
        assert (record.figures, record.silent_s) == (world.figures, 0)


async def test_a_dead_service_is_waited_for_until_its_silence_is_long_enough_and_what_it_held_is_free(world):
    await world.queue.create_job(Job(JobId("a")), {})
    await world.queue.add_shards(JobId("a"), [Shard(0, 0, 4, 0, 40)])
    await world.queue.activate(JobId("a"))
    await world.queue.nodes.register(OTHER)
    world.clock.advance(30)
    await world.queue.lease(OTHER.id, 4)
    async with coming(world) as task:
        await world.pass_time(29)
        assert not task.came.is_set()
        await world.pass_time(2)
        assert task.came.is_set()
        assert await world.names() == [OURS.id]
        assert len(await world.queue.lease(OURS.id, 4)) == 1


async def test_a_living_service_keeps_another_one_out(world):
    async with world.attendance(OTHER).alone():
        async with coming(world) as task:
            await world.pass_time(70, task)
            with pytest.raises(
                StateError, match="another service is at work on this queue: process 18 on gpu2"
            ):
                await task
        assert await world.names() == [OTHER.id]
    assert world.displaced == 0


async def test_of_two_that_wait_for_a_dead_one_the_first_comes_in(world):
    await world.queue.nodes.register(OTHER)
    world.clock.advance(1)
    async with coming(world) as task:
        while OURS.id not in await world.names():
            pass
        world.clock.advance(1)
        late = NodeIdentity(NodeId("late"), "gpu3", 19, "0.1.0")
        await world.queue.nodes.register(late)  # it waits as well, and beats
        for _ in range(60):
            await world.queue.nodes.heartbeat(late.id, NodeFigures())
            await world.pass_time(1)
        assert task.came.is_set()


async def test_a_service_whose_place_was_taken_is_told_once(world):
    async with world.attendance().alone():
        await world.queue.nodes.remove(OURS.id)
        await world.pass_time(45)
        assert world.displaced == 1


async def test_a_service_that_is_stopped_while_it_waits_waits_no_longer(world):
    async with world.attendance(OTHER).alone(), coming(world) as task:
        await world.pass_time(2)
        world.figures = NodeFigures(NodeState.DRAINING)
        await world.pass_time(2, task)
        with pytest.raises(StoppedError):
            await task
