"""The last rows are spread over the nodes."""

import asyncio

import pytest

from dispatcher.dispatch.giving import LEFT_S, to_give
from dispatcher.dispatch.shards import ShardInHand
from dispatcher.model import Job, JobId, Lease, NodeId, Shard, Tally

JOB = Job(JobId("job"))


def now():
    return asyncio.get_running_loop().time()


def shards(*owed):
    return [
        ShardInHand(Lease(JOB, Shard(number, number * 256, rows, 0, 0), 1), rows, Tally())
        for number, rows in enumerate(owed)
    ]


@pytest.mark.parametrize(
    ("owed", "ready", "hungry", "given"),
    [
        ((256, 256), 512, 1, [1]),
        ((256, 256), 600, 1, [1]),
        ((256,), 300, 1, [0]),
        ((256,), 256, 1, [0]),
        ((256,), 200, 1, []),
        ((), 500, 3, []),
        ((32,) * 8, 256, 1, [7, 6, 5, 4]),
        ((32,) * 8, 256, 3, [7, 6, 5, 4, 3, 2]),
        ((256, 10), 300, 1, [1, 0]),
    ],
)
def test_about_as_much_is_given_as_makes_equal_shares_and_the_last_first(owed, ready, hungry, given):
    assert [shard.lease.shard.number for shard in to_give(shards(*owed), ready, hungry)] == given


class Pair:
    """Two nodes with a server each on one queue."""

    def __init__(self, busy, idle):
        self.busy, self.idle = busy, idle
        idle.node.name = NodeId("other")
        idle.node._queue._node = NodeId("other")
        idle.node._queue._queue = busy.queue

    async def run(self, *, sharing):
        """Run to the end; how long it took."""
        telling = asyncio.create_task(self._tell()) if sharing else None
        first = asyncio.create_task(self.busy.run())
        await asyncio.sleep(1.0)  # it has the whole window
        second = asyncio.create_task(self.idle.run())
        await asyncio.gather(first, second)
        if telling is not None:
            telling.cancel()
        return now()

    async def _tell(self):
        """As the parent of workers does, or a heartbeat."""
        nodes = [self.busy, self.idle]
        while True:
            await asyncio.sleep(0.5)
            for bench, other in (nodes, nodes[::-1]):
                bench.node.share_out(int(other.desk.is_hungry()))

    def assert_answered_once(self, rows):
        outcomes = [index for bench in (self.busy, self.idle) for index in bench.recorder.outcomes]
        assert sorted(outcomes) == list(range(rows))


@pytest.mark.parametrize(("sharing", "seconds"), [(False, (32, 35)), (True, (16, 22))])
async def test_a_node_with_nothing_left_gets_what_another_has_not_begun(bench, sharing, seconds):
    async with bench(rows=512, shard_size=32, servers=("a",)) as b, bench(rows=0, servers=("b",)) as c:
        pair = Pair(b, c)
        took_s = await pair.run(sharing=sharing)
        pair.assert_answered_once(512)
        assert seconds[0] <= took_s <= seconds[1]
        assert len(b.network.sends()) + len(c.network.sends()) == 512, "nothing is sent twice"


async def test_what_was_given_back_is_left_to_the_others_for_a_while(bench):
    async with bench(rows=512, shard_size=32, servers=("a",)) as b:
        task = asyncio.create_task(b.run())
        await asyncio.sleep(3.0)
        b.node.share_out(1)
        await asyncio.sleep(0.1)
        given = (await b.queue.depth()).shards_ready
        assert given >= 4
        b.node.share_out(1)
        await asyncio.sleep(0.1)
        assert (await b.queue.depth()).shards_ready == given, "it may not have been found yet"
        await asyncio.sleep(LEFT_S - 0.3)
        assert (await b.queue.depth()).shards_ready == given
        await asyncio.sleep(1.2)
        assert (await b.queue.depth()).shards_ready == 0, "nobody came: it has them again"
        await task
        b.assert_answered_once()


async def test_nothing_is_given_to_nobody_or_by_a_node_that_drains(bench):
    async with bench(rows=2000, shard_size=32, servers=("a",)) as b:
        task = asyncio.create_task(b.run())
        await asyncio.sleep(3.0)
        leased = (await b.queue.depth()).shards_leased
        b.node.share_out(0)
        draining = asyncio.create_task(b.node.drain())
        await asyncio.sleep(0.1)
        b.node.share_out(3)
        await asyncio.sleep(0.1)
        assert (await b.queue.depth()).shards_leased == leased
        await draining
        await task


async def test_a_node_is_hungry_when_its_servers_could_take_more_and_there_is_no_more(bench):
    async with bench(rows=40, shard_size=4, servers=("a",)) as b:
        task = asyncio.create_task(b.run(until_drained=False))
        await asyncio.sleep(1.5)
        assert not b.desk.is_hungry()
        await asyncio.sleep(6.0)
        assert b.desk.is_hungry()
        b.server("a").die()
        await asyncio.sleep(6.0)
        assert not b.desk.is_hungry(), "it could send nothing"
        b.node.stop()
        await task
