"""The archive in a directory of this machine, of which this process is the only user."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from os import link
from pathlib import Path
from typing import BinaryIO, TypeVar

from dispatcher.ingest.payloads import FilePayloads
from dispatcher.jobs.archive import Lacking
from dispatcher.jobs.details import Details
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.payloads import JobPayloads
from dispatcher.jobs.places import Places
from dispatcher.jobs.retention import Retention
from dispatcher.model import Job, JobId, Lease, Outcome, Shard, Tally
from dispatcher.queue.keeping import FileRecord, Keeping
from dispatcher.queue.records import ShardRecord
from dispatcher.results.finalise import Unfinished, drop_failed, finalise
from dispatcher.results.journal import JournalContents, journal_path, read_journal
from dispatcher.storage.filesystem import fsync_dir, storage_errors

SHARDS_AT_ONCE = 500
"""Fetched by a thread from the event loop: a hop costs as much as a hundred of them."""
_Item = TypeVar("_Item")


class LocalArchive:
    """`Archive` over `places`: inputs are links to uploads, journals are the node's own."""

    def __init__(self, places: Places, keeping: Keeping, retention: Retention) -> None:
        self.payloads = JobPayloads(places)
        self._places = places
        self._keeping = keeping
        self._retention = retention

    async def open(self, jobs: Collection[JobId], making: Collection[str]) -> None:
        """See Archive."""
        known = await self._keeping.file_ids() | set(making)
        await asyncio.to_thread(self._tidy, known)
        await asyncio.to_thread(self._places.remove_strangers, jobs)

    async def keep_input(self, file: FileRecord, job: JobId) -> None:
        """See Archive."""
        await asyncio.to_thread(self._link, file, job)

    @contextmanager
    def input(self, kept: Kept) -> Iterator[BinaryIO]:
        """See Archive."""
        path = self._places.input_of(kept.id)
        with storage_errors(path, "cannot be read"):
            file = path.open("rb")
        with file:
            yield file

    async def contents(self, job: Job, shard: Shard, epoch: int | None) -> JournalContents:  # noqa: ARG002  # the port's
        """See Archive."""
        return await asyncio.to_thread(read_journal, journal_path(self._places.journals, job, shard), shard)

    async def take_back_failures(
        self, job: Job, shards: AsyncIterator[ShardRecord], check: Callable[[], None]
    ) -> None:
        """See Archive."""
        records = from_thread(shards, asyncio.get_running_loop(), check)

        def run() -> None:
            for record in records:
                drop_failed(job, record.shard, self._places.journals)

        await asyncio.to_thread(run)

    async def write(
        self,
        kept: Kept,
        shards: AsyncIterator[ShardRecord],
        lacking: Lacking | None,
        reader: Callable[[bytes], None],
        check: Callable[[], None],
    ) -> Tally:
        """See Archive."""
        making, places = kept.details.making, self._places
        assert making is not None, "its files have no names"
        unfinished = None if lacking is None else _made_up(kept.job, places.input_of(kept.id), lacking)
        records = from_thread(shards, asyncio.get_running_loop(), check)
        output, errors = places.file(making.output), places.file(making.errors)
        run = (kept.job, (record.shard for record in records), places.journals, output, errors)
        tally = await asyncio.to_thread(finalise, *run, unfinished, reader)
        if not tally.succeeded:
            await asyncio.to_thread(places.remove_file, making.output)
        return tally

    async def release(self, kept: Kept) -> None:
        """See Archive."""
        await asyncio.to_thread(self._places.remove, kept.id)

    async def is_read(self, file_id: str) -> bool:  # noqa: ARG002  # the port's
        """See Archive: no, as a link keeps the bytes."""
        return False

    def wants(self, details: Details, names: AbstractSet[str]) -> bool:
        """See Archive."""
        return self._retention.wants(details, names)

    async def collect_garbage(self) -> None:
        """See Archive: `open` has removed it, and nobody else makes any."""

    def _link(self, file: FileRecord, job: JobId) -> None:
        path = self._places.input_of(job)
        with storage_errors(path, "cannot be made"):
            link(self._places.file(file.id), path)
        fsync_dir(path.parent)

    def _tidy(self, known: set[str]) -> None:
        for folder in self._places.folders:
            with storage_errors(folder, "cannot be made"):
                folder.mkdir(exist_ok=True)
        for path in self._places.folders[0].iterdir():
            if path.name not in known and path.is_file():
                path.unlink(missing_ok=True)


def from_thread(
    items: AsyncIterator[_Item], loop: asyncio.AbstractEventLoop, check: Callable[[], None]
) -> Iterator[_Item]:
    """What the loop yields, for a thread. `check` is called for each, and may raise to end it."""

    async def following() -> list[_Item]:
        page: list[_Item] = []
        async for item in items:
            page.append(item)
            if len(page) == SHARDS_AT_ONCE:
                break
        return page

    while page := asyncio.run_coroutine_threadsafe(following(), loop).result():
        for item in page:
            check()
            yield item


def _made_up(job: Job, path: Path, lacking: Lacking) -> Unfinished:
    payloads = FilePayloads(path)
    code, message = lacking

    def unfinished(shard: Shard, missing: AbstractSet[int]) -> Iterable[Outcome]:
        for request in payloads.read_now(Lease(job, shard, 0)):
            if request.index in missing:
                yield Outcome(request.index, request.custom_id, code, message)

    return unfinished
