"""What is in a store and belongs to nothing: found, and removed."""

from collections.abc import AsyncIterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum

from dispatcher.jobs.archive import FILES
from dispatcher.jobs.details import Details, read_details
from dispatcher.jobs.retention import Retention
from dispatcher.model import JobId
from dispatcher.ports import Store, Stored
from dispatcher.queue.sql import SqlQueue
from dispatcher.results.checkpoints import FOLDER as JOURNALS
from dispatcher.results.checkpoints import Checkpoint, checkpoint_of

INPUTS = "inputs"
"""Of a directory that only one process uses; where nodes share a store, jobs read the files themselves."""
REMOVED_AT_ONCE = 1000


class Kind(StrEnum):
    """Why something is garbage."""

    NO_FILE = "bytes that are no file"
    NO_JOB = "journals and inputs of jobs that are no more"
    JOB_OVER = "journals and inputs of jobs that are over"
    SUPERSEDED = "journals that later leases have gone on from"


@dataclass(frozen=True, slots=True)
class Known:
    """What the queue knows."""

    files: AbstractSet[str]
    """Names of files that are there, are being made, or are read by jobs."""
    jobs: Mapping[JobId, bool]
    """Every job, and whether its journals are wanted."""


@dataclass(slots=True)
class Found:
    """How much there is of a kind."""

    objects: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Collected:
    """What was found, by kind."""

    found: dict[Kind, Found] = field(default_factory=lambda: {kind: Found() for kind in Kind})

    @property
    def objects(self) -> int:
        """Of all kinds."""
        return sum(found.objects for found in self.found.values())

    def add(self, kind: Kind, stored: Stored) -> None:
        """Count one."""
        self.found[kind].objects += 1
        self.found[kind].bytes += stored.size


async def collect_garbage(
    store: Store, queue: SqlQueue, retention: Retention, *, dry_run: bool = False
) -> Collected:
    """Remove what belongs to nothing, and is old enough for that to stay so; say how much that was.

    Safe beside nodes that are at work: what they write has a record soon after, and is young until then.
    With `dry_run` nothing is removed. Raises StorageError and QueueError.
    """
    known = await known_to(queue, retention)
    collected, keys = Collected(), list[str]()
    async for kind, stored in _garbage(store, known, retention.orphans_before):
        collected.add(kind, stored)
        keys.append(stored.key)
        if len(keys) == REMOVED_AT_ONCE and not dry_run:
            await store.delete(keys)
            keys.clear()
    if keys and not dry_run:
        await store.delete(keys)
    return collected


async def known_to(queue: SqlQueue, retention: Retention) -> Known:
    """What the queue knows now. Jobs first: one that ends in between has files that are among the names."""
    records = await queue.jobs()
    files = await queue.keeping.file_ids()
    details = {record.job.id: read_details(record.details) for record in records}
    names = set(files)
    for each in details.values():
        names |= _needed(each, retention, files)
    wanted = {job: each is None or retention.wants(each, files) for job, each in details.items()}
    return Known(names, wanted)


def _needed(details: Details | None, retention: Retention, files: AbstractSet[str]) -> set[str]:
    if details is None:
        return set()
    making = set() if details.making is None else details.making.names
    return making | ({details.input_file_id} if retention.wants(details, files) else set())


async def _garbage(store: Store, known: Known, before: float) -> AsyncIterator[tuple[Kind, Stored]]:
    async for stored in store.list(FILES):
        name = stored.key.removeprefix(f"{FILES}/").split(".", 1)[0]
        if stored.changed_at < before and name not in known.files:
            yield Kind.NO_FILE, stored
    async for stored in store.list(INPUTS):
        kind = _kind_of(stored.key, known)
        if kind is not None and stored.changed_at < before:
            yield kind, stored
    async for found in _needless_journals(store, known, before):
        yield found


async def _needless_journals(store: Store, known: Known, before: float) -> AsyncIterator[tuple[Kind, Stored]]:
    latest: tuple[Checkpoint, Stored] | None = None
    async for stored in store.list(JOURNALS):
        checkpoint = checkpoint_of(stored.key)
        kind = _kind_of(stored.key, known)
        if kind is not None:
            if stored.changed_at < before:
                yield kind, stored
        elif checkpoint is not None:
            # Stores list a shard's journals one after the other. Should one not, more is kept than need be.
            if latest is not None and _same_shard(latest[0], checkpoint):
                older, latest = _by_age(latest, (checkpoint, stored))
                if older.changed_at < before:
                    yield Kind.SUPERSEDED, older
            else:
                latest = checkpoint, stored


def _kind_of(key: str, known: Known) -> Kind | None:
    wanted = known.jobs.get(JobId(key.split("/")[1]))
    if wanted is None:
        return Kind.NO_JOB
    return None if wanted else Kind.JOB_OVER


def _same_shard(one: Checkpoint, other: Checkpoint) -> bool:
    return (one.job, one.number) == (other.job, other.number)


def _by_age(
    one: tuple[Checkpoint, Stored], other: tuple[Checkpoint, Stored]
) -> tuple[Stored, tuple[Checkpoint, Stored]]:
    """The older one, and the later one whole."""
    older, later = sorted((one, other), key=lambda each: each[0].age)
    return older[1], later
