"""`gc`: what is in the store and belongs to nothing, without a service of its own."""

import asyncio
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
from dispatcher.storage.uploads import abort_uploads, can_abort_uploads


async def collect(config: Config, *, dry_run: bool) -> tuple[Collected, int | None]:
    """Remove it; with `dry_run`, only look. Safe beside services that are at work.

    Returns as well how many multipart uploads were cut off by a kill; None: that cannot be told here.
    Raises StateError where there is no queue, or the store is another queue's; StorageError, QueueError.
    """
    clock, places, url = SystemClock(), Places(config.storage.local), config.storage.shared
    store = store_of(config.storage, clock, Random())  # noqa: S311  # spreads requests
    retention, uploads = retention_of(config.storage, clock), None
    async with _opened(config, places, clock) as queue:
        if url is not None:
            await require_claim(store, config, places)
        collected = await collect_garbage(store, queue, retention, dry_run=dry_run)
    if url is not None and can_abort_uploads(url):
        uploads = await asyncio.to_thread(abort_uploads, url, retention.orphans_before, dry_run=dry_run)
    return collected, uploads


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
