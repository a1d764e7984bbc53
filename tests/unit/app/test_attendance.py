"""One service at a time on a shared queue."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from queue_worlds import VirtualClock

from dispatcher.app.attendance import Attendance
from dispatcher.errors import StateError, StoppedError
from dispatcher.model import NodeId
from dispatcher.queue.nodes import NodeFigures, NodeIdentity, NodeRecord, NodeState

SILENCE_S = 60.0
OURS = NodeIdentity(NodeId("ours"), "gpu1", 17, "0.1.0")
OTHER = NodeIdentity(NodeId("another"), "gpu2", 18, "0.1.0")


class FakeNodes:
    """The list of nodes, without a database."""

    def __init__(self, clock):
        self.clock = clock
        self.records = {}

    async def register(self, identity):
        await asyncio.sleep(0)
        self.records[identity.id] = (identity, NodeFigures(), self.clock.time, self.clock.time)

    async def heartbeat(self, node, figures):
        await asyncio.sleep(0)
        if node not in self.records:
            return False
        identity, _, started_at, _ = self.records[node]
        self.records[node] = (identity, figures, started_at, self.clock.time)
        return True

    async def list(self):
        await asyncio.sleep(0)
        return [
            NodeRecord(identity, figures, started_at, self.clock.time - heartbeat_at)
            for identity, figures, started_at, heartbeat_at in self.records.values()
        ]

    async def remove(self, node):
        await asyncio.sleep(0)
        self.records.pop(node, None)


class World:
    def __init__(self, clock):
        self.nodes = FakeNodes(clock)
        self.clock = clock
        self.figures = NodeFigures()
        self.displaced = 0

    def attendance(self, identity=OURS):
        return Attendance(self.nodes, identity, self.clock, SILENCE_S, lambda: self.figures, self._count)

    def _count(self):
        self.displaced += 1

    async def names(self):
        return [record.identity.id for record in await self.nodes.list()]

    async def pass_time(self, seconds, task=None):
        """Second by second, and between them whatever is due is done."""
        for _ in range(seconds):
            self.clock.advance(1)
            for _ in range(5):
                await self.names()
            if task is not None and task.done():
                return


@pytest.fixture
def world():
    return World(VirtualClock())


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
        (record,) = await world.nodes.list()
        assert (record.figures, record.silent_s) == (world.figures, 0)


async def test_a_dead_service_is_waited_for_until_its_silence_is_long_enough_and_taken_off_the_list(world):
    await world.nodes.register(OTHER)
    world.clock.advance(30)
    async with coming(world) as task:
        await world.pass_time(29)
        assert not task.came.is_set()
        await world.pass_time(2)
        assert task.came.is_set()
        assert await world.names() == [OURS.id]


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
    await world.nodes.register(OTHER)
    world.clock.advance(1)
    async with coming(world) as task:
        while OURS.id not in await world.names():
            pass
        world.clock.advance(1)
        late = NodeIdentity(NodeId("late"), "gpu3", 19, "0.1.0")
        await world.nodes.register(late)  # it waits as well, and beats
        for _ in range(60):
            await world.nodes.heartbeat(late.id, NodeFigures())
            await world.pass_time(1)
        assert task.came.is_set()


async def test_a_service_whose_place_was_taken_is_told_once(world):
    async with world.attendance().alone():
        await world.nodes.remove(OURS.id)
        await world.pass_time(45)
        assert world.displaced == 1


async def test_a_service_that_is_stopped_while_it_waits_waits_no_longer(world):
    async with world.attendance(OTHER).alone(), coming(world) as task:
        await world.pass_time(2)
        world.figures = NodeFigures(NodeState.DRAINING)
        await world.pass_time(2, task)
        with pytest.raises(StoppedError):
            await task
