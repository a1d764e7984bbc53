"""`gc`: what is in the store and belongs to nothing, without a service of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from dispatcher.app.clock import SystemClock
from dispatcher.app.extras import require_postgresql
from dispatcher.app.storing import require_claim, retention_of, store_of
from dispatcher.config import Config
from dispatcher.errors import StateError
from dispatcher.jobs.garbage import Collected, collect_garbage
from dispatcher.jobs.places import Places
from dispatcher.ports import Clock
from dispatcher.queue.sql import SqlQueue, open_queue
from dispatcher.storage.filesystem import network_filesystem


async def collect(config: Config, *, dry_run: bool) -> Collected:
    """Remove it; with `dry_run`, only look. Safe beside services that are at work.

    Raises StateError where there is no queue, or the store is another queue's; StorageError, QueueError.
    """
    clock, places = SystemClock(), Places(config.storage.local)
    store = store_of(config.storage, clock, Random())  # noqa: S311  # spreads requests
    async with _opened(config, places, clock) as queue:
        if config.storage.shared is not None:
            await require_claim(store, config, places)
        return await collect_garbage(store, queue, retention_of(config.storage, clock), dry_run=dry_run)


@asynccontextmanager
async def _opened(config: Config, places: Places, clock: Clock) -> AsyncIterator[SqlQueue]:
    """The queue, which must be there: an empty one would make garbage of everything."""
    if config.queue.url is not None:
        require_postgresql()
        from dispatcher.queue.shared import open_shared_queue  # noqa: PLC0415  # an extra

        async with open_shared_queue(config.queue.url, clock) as queue:
            yield queue
        return
    if not places.queue.is_file():
        raise StateError(f"there is no queue in {places.root}; name its directory in storage.directory")
    on_network = network_filesystem(places.root) is not None
    async with open_queue(places.queue, clock, network_filesystem=on_network) as queue:
        yield queue
