"""The primary dies and a standby takes its place: nodes go on there, and nothing is lost or done twice."""

import asyncio

import pytest
from postgres_server import open_postgres
from structlog.testing import capture_logs

from dispatcher.app.clock import SystemClock
from dispatcher.config.queue import queue_url
from dispatcher.errors import QueueError, QueueUnreachableError
from dispatcher.model import Job, JobId, Tally
from dispatcher.queue.migrating import open_migration
from dispatcher.queue.shared import open_shared_queue

pytestmark = pytest.mark.services
A = JobId("a")
WITHIN_S = 30.0


@pytest.fixture
def pair():
    with open_postgres() as primary:
        primary.sql("CREATE DATABASE queue")
        with open_postgres(primary) as standby:
            yield primary, standby


async def until(condition):
    async with asyncio.timeout(WITHIN_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110  # it is another process's
            await asyncio.sleep(0.05)


async def again(call):
    """As a node does it: until the queue is there."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                return await call()
            except QueueUnreachableError:
                await asyncio.sleep(0.2)


async def test_nodes_go_on_with_the_standby_that_was_promoted(pair, shards, node):
    primary, standby = pair
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    url = queue_url(f"postgresql://postgres@{hosts}/queue?target_session_attrs=read-write")
    async with open_migration(url, SystemClock()) as migration:
        await migration.run()
    with capture_logs() as logs:
        async with open_shared_queue(url, SystemClock()) as queue:
            await queue.create_job(Job(A), {})
            await queue.add_shards(A, shards([4] * 4))
            await queue.activate(A)
            first, second = await queue.lease(node, 8)
            await queue.settle(node, first, Tally(4))
            here = primary.sql("SELECT pg_current_wal_lsn()")
            await until(lambda: standby.sql(f"SELECT pg_last_wal_replay_lsn() >= '{here}'") == "t")
            await asyncio.to_thread(primary.kill)
            with pytest.raises(QueueUnreachableError):
                await queue.lease(node, 4)
            await asyncio.to_thread(standby.sql, "SELECT pg_promote()")
            assert await again(lambda: queue.renew(node, [second])) == []
            await queue.settle(node, second, Tally(4))
            assert [lease.shard.number for lease in await queue.lease(node, 100)] == [2, 3]
            assert (await queue.job(A)).shards_settled == 2
    told = [entry["event"] for entry in logs if entry["log_level"] != "debug"]
    assert told == ["queue_unreachable", "queue_reachable"]


async def test_a_standby_alone_is_said_to_be_one(pair):
    primary, standby = pair
    async with open_migration(queue_url(primary.url_of("queue")), SystemClock()) as migration:
        await migration.run()
    here = primary.sql("SELECT pg_current_wal_lsn()")
    await until(lambda: standby.sql(f"SELECT pg_last_wal_replay_lsn() >= '{here}'") == "t")
    async with open_shared_queue(queue_url(standby.url_of("queue")), SystemClock()) as queue:
        with pytest.raises(QueueError, match="it is a standby"):
            await queue.create_job(Job(A), {})
