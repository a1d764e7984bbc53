"""Queues on a real PostgreSQL: each test has a database of its own, copied from one with the tables."""

import asyncio
from contextlib import asynccontextmanager

import pytest

pytest.register_assert_rewrite(
    "queue_contract", "queue_jobs_contract", "queue_nodes_contract", "members_contract"
)

from queue_worlds import LEASE_S, SqlWorld, VirtualClock, clock, node, other, shards  # noqa: E402  # after that
from sqlalchemy import literal  # noqa: E402

from dispatcher.app.clock import SystemClock  # noqa: E402
from dispatcher.config.queue import queue_url  # noqa: E402
from dispatcher.queue.listening import listening  # noqa: E402
from dispatcher.queue.migrating import open_migration  # noqa: E402
from dispatcher.queue.postgresql import open_postgresql  # noqa: E402
from dispatcher.queue.sql import SqlQueue  # noqa: E402

__all__ = ["clock", "node", "other", "shards"]


@pytest.fixture(scope="session")
def migrated(postgres):
    """The name of a database with the queue's tables, to copy."""
    url = queue_url(postgres.fresh_database("migrated"))

    async def migrate():
        async with open_migration(url, SystemClock()) as migration:
            await migration.run()

    asyncio.run(migrate())
    return "migrated"


@pytest.fixture
def url(postgres, migrated):
    """Of a database with the queue's tables."""
    made = queue_url(postgres.fresh_database(template=migrated))
    yield made
    postgres.drop_database(made.secret)


@asynccontextmanager
async def virtual_queue(url, clock):
    """A queue whose leases are counted by the test's time."""
    async with open_postgresql(url, SystemClock()) as database:
        queue = SqlQueue(database, clock, lambda: literal(clock.wall()), LEASE_S)
        async with listening(url, queue.heard):
            yield queue


@pytest.fixture
async def sql(url):
    clock = VirtualClock()
    async with open_postgresql(url, SystemClock()) as database:
        yield SqlWorld(SqlQueue(database, clock, lambda: literal(clock.wall()), LEASE_S), clock)


@pytest.fixture
def world(sql):
    return sql
