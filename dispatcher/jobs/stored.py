"""The archive in a store that several nodes may share: no node has anything that others cannot go on with."""

import asyncio
import io
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Final, cast

import structlog

from dispatcher.errors import Fault, InputError, StorageError
from dispatcher.ingest.payloads import requests_in
from dispatcher.jobs.archive import Lacking, file_key
from dispatcher.jobs.details import Details, read_details
from dispatcher.jobs.garbage import collect_garbage, known_to
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.places import Places
from dispatcher.jobs.retention import Retention
from dispatcher.model import Job, JobId, Lease, Outcome, Request, Shard, Tally
from dispatcher.ports import Store
from dispatcher.queue.keeping import FileRecord
from dispatcher.queue.records import ShardRecord
from dispatcher.queue.sql import SqlQueue
from dispatcher.results.checkpoints import Checkpoints, folder_of
from dispatcher.results.copies import Copies
from dispatcher.results.joining import MadeUp, ahead, join
from dispatcher.results.journal import JournalContents, parse_journal

if TYPE_CHECKING:
    from typing_extensions import Buffer

READ_BYTES: Final = 8 << 20
"""Of an input, at once: a store answers a request in a tenth of a second, whatever its size."""
JOBS_REMEMBERED: Final = 1000
TAKEN_BACK_AT_ONCE: Final = 16
"""Shards: each takes three requests."""
MADE_UP_BYTES: Final = 1024
"""What a line takes, about, that says that a request was not finished."""


class StoredPayloads:
    """`ports.Payloads`: each shard is one range of its job's input in the store."""

    def __init__(self, store: Store, queue: SqlQueue) -> None:
        self._store = store
        self._queue = queue
        self._inputs: OrderedDict[JobId, str] = OrderedDict()

    async def read(self, lease: Lease) -> Sequence[Request]:
        """See Payloads. Raises StorageError where the job's input cannot be read, or has changed."""
        shard = lease.shard
        if shard.requests == 0:
            return []  # its one line may be too long to be read
        key = await self.key_of(lease.job.id)
        content = await self._store.read(key, shard.offset, shard.length)
        return await asyncio.to_thread(requests_in, content, lease, key)

    async def key_of(self, job: JobId) -> str:
        """Where a job's input is. Raises StorageError for a job that is no more."""
        known = self._inputs.get(job)
        if known is None:
            record = await self._queue.job(job)
            details = None if record is None else read_details(record.details)
            if details is None:
                raise StorageError(f"job {job} is no more, and its input with it")
            known = self._inputs[job] = file_key(details.input_file_id)
            if len(self._inputs) > JOBS_REMEMBERED:
                self._inputs.popitem(last=False)
        return known


class StoredArchive:
    """`Archive` over a store. `places` is this node's scratch space, `copies` its own journals there."""

    def __init__(
        self, store: Store, queue: SqlQueue, places: Places, copies: Copies, retention: Retention
    ) -> None:
        self.payloads = StoredPayloads(store, queue)
        self._store = store
        self._queue = queue
        self._places = places
        self._copies = copies
        self._retention = retention
        self._log = structlog.get_logger("dispatcher.jobs")
        self._checkpoints = Checkpoints(store)

    async def open(self, jobs: Collection[JobId], making: Collection[str]) -> None:  # noqa: ARG002  # the port's
        """See Archive. What is left in the store is for `gc`: another node may be at it."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._places.make_scratch)
        await self._remove_copies(await asyncio.to_thread(self._copies.jobs) - set(jobs))

    async def keep_input(self, file: FileRecord, job: JobId) -> None:  # noqa: ARG002  # the port's
        """See Archive: `is_read` tells of it as soon as the job is in the queue."""
        if await self._store.find(file_key(file.id)) is None:
            raise StorageError(f"{file.id}: the file was deleted")

    @contextmanager
    def input(self, kept: Kept) -> Iterator[BinaryIO]:
        """See Archive."""
        raw = _Reading(self._store, file_key(kept.details.input_file_id), self._loop)
        yield cast("BinaryIO", io.BufferedReader(raw, READ_BYTES))

    async def contents(self, job: Job, shard: Shard, epoch: int | None) -> JournalContents:
        """See Archive."""
        if epoch is not None:
            data = await self._checkpoints.settled(job.id, shard.number, epoch)
        else:
            found = await self._checkpoints.latest(job.id, shard)
            data = await asyncio.to_thread(self._copies.newest, job, shard, found)
        return await asyncio.to_thread(parse_journal, data, shard)

    async def take_back_failures(
        self, job: Job, shards: AsyncIterator[ShardRecord], check: Callable[[], None]
    ) -> None:
        """See Archive."""
        async for some in _batches(shards, TAKEN_BACK_AT_ONCE):
            check()
            taking_back = self._checkpoints.take_back_failures
            leased = [record for record in some if record.epoch > 0]
            await asyncio.gather(*(taking_back(job, record.shard, record.epoch) for record in leased))

    async def write(
        self,
        kept: Kept,
        shards: AsyncIterator[ShardRecord],
        lacking: Lacking | None,
        reader: Callable[[bytes], None],
        check: Callable[[], None],
    ) -> Tally:
        """See Archive."""
        making = kept.details.making
        assert making is not None, "its files have no names"
        bytes_max = await self._recorded_bytes(kept.id) + MADE_UP_BYTES * kept.requests
        made_up = None if lacking is None else self._made_up(kept.job, lacking)
        journals = ahead(_of_settled(shards, check), partial(self.contents, kept.job))
        async with (
            self._store.receive(file_key(making.output), bytes_max) as output,
            self._store.receive(file_key(making.errors), bytes_max) as errors,
        ):
            tally = await join(kept.job, journals, output, errors, made_up, reader)
            if tally.failed:
                await errors.keep()
            if tally.succeeded:
                await output.keep()
        return tally

    async def release(self, kept: Kept) -> None:
        """See Archive."""
        await asyncio.to_thread(self._copies.remove_all, kept.id)
        await self._checkpoints.delete_all(kept.id)
        name = kept.details.input_file_id
        if await self._queue.keeping.file(name) is None and not await self.is_read(name):
            await self._store.delete([file_key(name)])

    async def is_read(self, file_id: str) -> bool:
        """See Archive."""
        jobs = await self._queue.keeping.details_with("input_file_id", file_id)
        found = [details for each in jobs if (details := read_details(each)) is not None]
        names = await self._queue.keeping.file_ids() if found else set[str]()
        return any(self.wants(each, names) for each in found)

    def wants(self, details: Details, names: AbstractSet[str]) -> bool:
        """See Archive."""
        return self._retention.wants(details, names)

    async def collect_garbage(self) -> None:
        """See Archive."""
        mine = await asyncio.to_thread(self._copies.jobs)  # first: a job is in the queue before it has copies
        wanted = {
            job for job, wanted in (await known_to(self._queue, self._retention)).jobs.items() if wanted
        }
        await self._remove_copies(mine - wanted)
        collected = await collect_garbage(self._store, self._queue, self._retention)
        if collected.objects:
            removed = {kind.name.lower(): found.objects for kind, found in collected.found.items()}
            self._log.info("garbage_removed", **removed)

    async def _remove_copies(self, jobs: AbstractSet[JobId]) -> None:
        for job in jobs:
            await asyncio.to_thread(self._copies.remove_all, job)

    async def _recorded_bytes(self, job: JobId) -> int:
        return sum([stored.size async for stored in self._store.list(folder_of(job))])

    def _made_up(self, job: Job, lacking: Lacking) -> MadeUp:
        code, message = lacking

        async def made_up(shard: Shard, missing: AbstractSet[int]) -> list[Outcome]:
            requests = await self.payloads.read(Lease(job, shard, 0))
            asked = [request for request in requests if request.index in missing]
            return [Outcome(request.index, request.custom_id, code, message) for request in asked]

        return made_up


async def _of_settled(
    records: AsyncIterator[ShardRecord], check: Callable[[], None]
) -> AsyncIterator[tuple[Shard, int | None]]:
    """The epoch that settled each shard: what any other lease has written of it does not count."""
    async for record in records:
        check()
        yield record.shard, None if record.tally is None else record.epoch


async def _batches(records: AsyncIterator[ShardRecord], size: int) -> AsyncIterator[list[ShardRecord]]:
    batch: list[ShardRecord] = []
    async for record in records:
        batch.append(record)
        if len(batch) == size:
            yield batch
            batch = []
    yield batch


class _Reading(io.RawIOBase):
    """An object as a file, for a thread; the store is asked in its loop."""

    def __init__(self, store: Store, key: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.name = key
        self._store = store
        self._loop = loop
        self._at = 0
        self._size = self._find()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: "Buffer", /) -> int:
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._size - self._at)
        if length <= 0:
            return 0
        read = self._store.read(self.name, self._at, length)
        piece = asyncio.run_coroutine_threadsafe(read, self._loop).result()
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _find(self) -> int:
        found = asyncio.run_coroutine_threadsafe(self._store.find(self.name), self._loop).result()
        if found is None:
            fault = Fault(self.name, "the input file was deleted before it was read", code="file_deleted")
            raise InputError(f"{self.name}: there is no such file", (fault,), 1)
        return found.size
