"""Jobs beside each other at one node: each has its part of what is sent, and begins at once."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from dispatcher.dispatch.patience import BACK_S, RETRY_S
from dispatcher.model import Job, JobId, Shard

JOB, OTHER = JobId("job"), JobId("other")
SCENE = {"rows": 4000, "shard_size": 250, "pool": {"limit": 16}}
TAKES_S = 1.28
"""25 rows/s, with the 32 permits of two servers."""
BASE = 100_000
"""Where the indexes of the other job begin."""


@pytest.fixture
def at_work(bench):
    """A node that has been at work on the first job for ten seconds: its window is full."""

    @asynccontextmanager
    async def at_work():
        async with bench(**SCENE) as b:
            b.server("a").takes_s = b.server("b").takes_s = TAKES_S
            task = asyncio.create_task(b.run(until_drained=False))
            await asyncio.sleep(10.0)
            assert b.desk.room() == 0
            yield b
            b.node.stop()
            await task

    return at_work


def submit(bench, rows, *, shard_size=250, **settings):
    job = Job(OTHER, **settings)
    for first in range(BASE, BASE + rows, shard_size):
        bench.queue.add(job, Shard(first, first, min(shard_size, BASE + rows - first), 0, 0))
    bench.node.expect(job)


def sent_since(bench, at):
    """Whose requests were sent since then, in order."""
    return [OTHER if index >= BASE else JOB for sent_at, index in bench.network.sends() if sent_at > at]


def now():
    return asyncio.get_running_loop().time()


async def test_by_weight_from_the_first_row_on(at_work):
    async with at_work() as b:
        at = now()
        submit(b, 2000, weight=3.0)
        await asyncio.sleep(30.0)
        sent = sent_since(b, at)
        for rows in (40, 100, 400, 700):
            assert Counter(sent[:rows])[OTHER] == pytest.approx(rows * 3 / 4, rel=0.1)


@pytest.mark.parametrize("shard_size", [1, 20, 250])
async def test_by_weight_however_small_the_shards_are(at_work, shard_size):
    async with at_work() as b:
        at = now()
        submit(b, 600, shard_size=shard_size, weight=3.0)
        await asyncio.sleep(30.0)
        sent = sent_since(b, at)
        assert Counter(sent[:700])[OTHER] == pytest.approx(525, rel=0.1)


async def test_what_is_in_flight_follows_the_weights_once_permits_come_free(at_work):
    async with at_work() as b:
        b.server("a").takes_s = b.server("b").takes_s = 60.0
        await asyncio.sleep(2.0)
        submit(b, 1000, weight=3.0)
        await asyncio.sleep(30.0)
        assert sent_since(b, now() - 29.0) == [], "what runs is not broken off"
        await asyncio.sleep(60.0)
        running = Counter(attempt.item.lease.job.id for attempt in b.desk.open_attempts())
        assert running == {JOB: 8, OTHER: 24}


async def test_a_higher_priority_is_all_that_is_sent_until_it_is_done(at_work):
    async with at_work() as b:
        at = now()
        submit(b, 400, shard_size=100, priority=100)
        await asyncio.sleep(30.0)
        since = [(sent_at, index) for sent_at, index in b.network.sends() if sent_at > at]
        ours = [sent_at for sent_at, index in since if index >= BASE]
        assert len(ours) == 400
        assert ours[0] <= at + TAKES_S
        assert ours[-1] <= min(sent_at for sent_at, index in since if index < BASE)


async def test_a_priority_that_is_raised_holds_for_what_is_in_hand(at_work):
    async with at_work() as b:
        submit(b, 1000, weight=0.1)
        await asyncio.sleep(4.0)
        at = now()
        b.node.expect(Job(OTHER, priority=1))
        await asyncio.sleep(4.0)
        assert set(sent_since(b, at)) == {OTHER}


async def test_a_priority_that_is_raised_while_a_shard_is_leased_is_not_taken_back_by_it(at_work):
    async with at_work() as b:
        read = b.payloads.read

        async def read_slowly(lease):
            await asyncio.sleep(1.0)
            return await read(lease)

        b.payloads.read = read_slowly
        submit(b, 200, weight=0.1)
        await asyncio.sleep(0.5)
        b.node.expect(Job(OTHER, priority=1))
        await asyncio.sleep(2.0)
        at = now()
        await asyncio.sleep(3.0)
        assert set(sent_since(b, at)) == {OTHER}


async def test_a_lower_priority_waits_and_is_sent_when_nothing_else_is_left(at_work):
    async with at_work() as b:
        at = now()
        submit(b, 100, priority=-1)
        await asyncio.sleep(200.0)
        sent = sent_since(b, at)
        assert sent.index(OTHER) == len(sent) - 100


async def test_servers_that_only_a_lower_priority_can_use_do_not_stand_idle(bench):
    async with bench(**SCENE, job={"priority": 1}) as b:
        b.server("a").models, b.server("b").models = {"m": "m"}, {"n": "n"}
        b.payloads.model_of = lambda index: "n" if index >= BASE else "m"
        task = asyncio.create_task(b.run(until_drained=False))
        await asyncio.sleep(5.0)
        submit(b, 1000)
        await asyncio.sleep(20.0)
        assert len(b.server("b").sent) >= 16 * 19
        b.node.stop()
        await task


async def test_a_job_that_is_nearly_done_has_the_queue_asked_once_and_not_for_every_row(at_work):
    async with at_work() as b:
        submit(b, 100)
        await asyncio.sleep(1.0)
        at = now()
        await asyncio.sleep(10.0)
        assert Counter(sent_since(b, 0.0))[OTHER] == 100
        assert len([when for when, call in b.queue.calls if call == "lease" and when > at]) <= 3


async def test_a_queue_that_fails_is_asked_again_in_time_and_the_job_gets_its_part(at_work):
    async with at_work() as b:
        b.queue.broken = True
        at = now()
        submit(b, 200, weight=3.0)
        await asyncio.sleep(3.5)
        asked = [when for when, call in b.queue.calls if call in ("lease", "depth") and when > at]
        assert 2 <= len(asked) <= 2 + 3.5 / RETRY_S
        b.queue.broken = False
        at = now() + RETRY_S + BACK_S
        await asyncio.sleep(RETRY_S + BACK_S + 2 * TAKES_S)
        assert Counter(sent_since(b, at))[OTHER] >= 2 * 24


async def test_a_job_with_a_limit_uses_it_up_all_the_time(at_work):
    async with at_work() as b:
        submit(b, 600, shard_size=20, limit=3)
        await asyncio.sleep(60.0)
        ours = [sent_at for sent_at, index in b.network.sends() if index >= BASE]
        assert max(later - earlier for earlier, later in pairwise(ours)) <= 1.5 * TAKES_S
