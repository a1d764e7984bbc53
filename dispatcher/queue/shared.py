"""The queue that several nodes share, on PostgreSQL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from dispatcher.config import QueueUrl
from dispatcher.ports import Clock
from dispatcher.queue.listening import listening
from dispatcher.queue.migrations import HEAD
from dispatcher.queue.postgresql import database_time, open_postgresql
from dispatcher.queue.sql import SqlQueue


@asynccontextmanager
async def open_shared_queue(url: QueueUrl, clock: Clock, *, lease_s: float = 60.0) -> AsyncIterator[SqlQueue]:
    """Open the queue in this database. Its tables must be there: see `migrating`.

    The time of all leases is the database's. While the database is away every method raises
    QueueUnreachableError; connections are made anew when it is back, without a word of ours.

    Raises StateError where the tables are not there, or are another version's; QueueError with advice where
    the database cannot be used, of which QueueUnreachableError may pass.
    """
    async with open_postgresql(url, clock) as database:
        revision = await database.require()
        if revision != HEAD:
            log = structlog.get_logger("dispatcher.queue")
            log.info("queue_newer", revision=revision, known=HEAD, advice="upgrade this dispatcher in time")
        queue = SqlQueue(database, clock, database_time, lease_s)
        async with listening(url, queue.heard):
            yield queue
