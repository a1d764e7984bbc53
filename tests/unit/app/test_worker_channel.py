"""The line between a run and a worker."""

import asyncio
import socket

import pytest

from dispatcher.app.workers.channel import Channel
from dispatcher.app.workers.messages import (
    Drain,
    Elsewhere,
    Ended,
    FromParent,
    FromWorker,
    Hungry,
    Order,
    Stop,
    SuspectsAt,
)

ORDER = Order(1, 2, "node", {"servers": [{"url": "http://a:1"}]}, "in", None, {"a": [1, None]})


@pytest.fixture
async def ends():
    ours, theirs = socket.socketpair()
    parent, worker = await Channel.over(ours, FromWorker), await Channel.over(theirs, FromParent)
    yield parent, worker
    parent.close()
    worker.close()
    await asyncio.sleep(0)


async def test_messages_come_whole_and_in_order(ends):
    parent, worker = ends
    told = [ORDER, Drain(), Elsewhere(["http://a"]), Hungry(2), Stop()]
    for message in told:
        parent.tell(message)
    assert [await worker.hear() for _ in told] == told
    worker.tell(SuspectsAt(["http://a"]))
    worker.tell(Ended(nothing_left=True))
    assert [await parent.hear(), await parent.hear()] == [
        SuspectsAt(["http://a"]),
        Ended(nothing_left=True),
    ]


async def test_one_far_larger_than_a_buffer_comes_whole_as_well(ends):
    parent, worker = ends
    large = SuspectsAt([f"http://gpu{number}:8000" for number in range(100_000)])
    worker.tell(large)
    heard, _ = await asyncio.gather(parent.hear(), worker.flushed())
    assert heard == large


async def test_the_end_of_the_other_is_heard_and_nothing_can_be_told_it(ends):
    parent, worker = ends
    worker.tell(Ended(nothing_left=False))
    worker.close()
    assert await parent.hear() == Ended(nothing_left=False)
    assert await parent.hear() is None
    for _ in range(3):
        parent.tell(Stop())
        await parent.flushed()
        await asyncio.sleep(0)
    worker.tell(Ended(nothing_left=False))
