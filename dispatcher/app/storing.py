"""Where the service's bytes are: in its own directory, or in a store that nodes share. Composes either."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol
from urllib.parse import unquote, urlsplit

from dispatcher.app.fleet import Fleet
from dispatcher.config import Config, StorageSettings
from dispatcher.errors import StateError, TakenError
from dispatcher.jobs.archive import Archive
from dispatcher.jobs.files import Files
from dispatcher.jobs.local import LocalArchive
from dispatcher.jobs.places import Places
from dispatcher.jobs.retention import Retention
from dispatcher.jobs.stored import StoredArchive
from dispatcher.ports import Clock, Queue, Recorder, Store
from dispatcher.queue.sql import SqlQueue
from dispatcher.queue.tenure import Tenure
from dispatcher.results.checkpointed import CheckpointedRecorder
from dispatcher.results.copies import Copies
from dispatcher.results.recorder import JournalRecorder
from dispatcher.storage.folder import Folder
from dispatcher.storage.patience import Patience

CLAIM = "queue"
"""The key under which the store says which queue goes with it."""


class CheckedStore(Store, Protocol):
    """A store that can be asked whether it is of use."""

    async def check(self) -> None:
        """Find out before the work whether it can be written. Raises StorageError."""


@dataclass(frozen=True, slots=True)
class Storing:
    """What the service needs of its storage."""

    files: Files
    archive: Archive
    recorder: Recorder
    queue: Queue
    """The queue as the node is to use it."""


def store_of(settings: StorageSettings, clock: Clock, random: Random) -> CheckedStore:
    """The store of these settings; nothing is asked of it yet. Raises ConfigError, StorageError."""
    url = settings.shared
    if url is None:
        return Folder(settings.local)
    if urlsplit(url).scheme == "file":
        return Folder(Path(unquote(urlsplit(url).path)))
    from dispatcher.storage.objects import ObjectStorage  # noqa: PLC0415  # an extra
    from dispatcher.storage.opening import open_store  # noqa: PLC0415

    single, streams = open_store(url, retries=False), open_store(url, retries=True)
    return ObjectStorage(url, single, streams, Patience(url, clock, random))


async def claim(store: Store, config: Config, places: Places) -> None:
    """Note in the store whose it is. Raises StateError where it is another queue's.

    Of two queues each would take the other's bytes for garbage.
    """
    name = _queue_name(config, places)
    try:
        await store.put(CLAIM, name.encode())
    except TakenError:
        await require_claim(store, config, places)


async def require_claim(store: Store, config: Config, places: Places) -> None:
    """Raises StateError where the store is no queue's, or another one's."""
    name = _queue_name(config, places)
    found = (await store.read(CLAIM)).decode() if await store.find(CLAIM) is not None else "none"
    if found != name:
        raise StateError(
            f"{config.storage.shared}: the queue that goes with it is {found}, and here it is {name}. Use the"
            f" other settings; or, where the queue has moved, remove the object `{CLAIM}` and start `serve`"
        )


def _queue_name(config: Config, places: Places) -> str:
    """Of a database the name only: nodes may reach it by different addresses."""
    if config.queue.url is not None:
        return f"the PostgreSQL database {config.queue.url.name.rpartition('/')[2]}"
    return f"{places.queue.resolve()} on {socket.gethostname()}"


def retention_of(settings: StorageSettings, clock: Clock) -> Retention:
    """How long things are kept by these settings."""
    return Retention(clock, settings.journals_kept_s, settings.orphans_kept_s)


@asynccontextmanager
async def open_storing(
    config: Config, places: Places, queue: SqlQueue, fleet: Fleet
) -> AsyncIterator[Storing]:
    """Begin to record. What was appended is durable when the context is left.

    Raises StorageError where the store is of no use, StateError where it is another queue's.
    """
    store = store_of(config.storage, fleet.clock, Random())  # noqa: S311  # spreads requests
    await store.check()
    kept_s = config.storage.files_kept_s
    retention = retention_of(config.storage, fleet.clock)
    if config.storage.shared is None:
        archive: Archive = LocalArchive(places, queue.keeping, retention)
        files = Files(store, queue.keeping, fleet.clock, files_kept_s=kept_s)
        async with _recorder(config, places, fleet) as recorder:
            yield Storing(files, archive, recorder, queue)
        return
    await claim(store, config, places)
    copies = Copies(places.journals)
    tenure = Tenure(queue, config.queue.lease_s)
    archive = StoredArchive(store, queue, places, copies, retention)
    files = Files(store, queue.keeping, fleet.clock, needed=archive.is_read, files_kept_s=kept_s)
    inner = _recorder(config, places, fleet, copies)
    async with CheckpointedRecorder(
        inner,
        store,
        copies,
        fleet.clock,
        Random(),  # noqa: S311  # spreads requests
        left_s=tenure.left_s,
        checkpoint_s=config.results.checkpoint_s,
    ) as checkpointed:
        yield Storing(files, archive, checkpointed, tenure)


def _recorder(config: Config, places: Places, fleet: Fleet, copies: Copies | None = None) -> JournalRecorder:
    return JournalRecorder(
        places.journals,
        fleet.clock,
        sync_s=config.results.sync_s,
        on_sync=fleet.metrics.journal_synced,
        path_of=None if copies is None else copies.path_of,
    )
