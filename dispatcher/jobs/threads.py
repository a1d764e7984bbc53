"""What reads or writes whole files of a job: in threads, which end soon once they are told to."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

import structlog

from dispatcher.errors import StorageError
from dispatcher.ingest.findings import ScanReport
from dispatcher.ingest.payloads import FilePayloads
from dispatcher.ingest.scan import scan
from dispatcher.ingest.sharding import ScanLimits
from dispatcher.jobs.details import TokenDetails
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.places import Places
from dispatcher.jobs.usage import UsageReader
from dispatcher.model import ErrorCode, Job, Lease, Outcome, Shard, Tally
from dispatcher.queue.records import ShardRecord
from dispatcher.queue.sql import SqlQueue
from dispatcher.results.finalise import Unfinished, drop_failed, finalise
from dispatcher.results.journal import journal_path, read_journal

SHARDS_AT_ONCE = 500
"""Fetched by a thread from the event loop: a hop costs as much as a hundred of them."""


class Paperwork:
    """The blocking work on a job. `check` is called now and then, and raises StoppedError to end it."""

    def __init__(self, queue: SqlQueue, places: Places, shard_size: int) -> None:
        self._queue = queue
        self._places = places
        self._shard_size = shard_size
        self._log = structlog.get_logger("dispatcher.jobs")

    async def read(self, kept: Kept, check: Callable[[], None]) -> ScanReport:
        """Check the job's input, and give the queue its shards. Raises InputError, StorageError."""
        loop, job = asyncio.get_running_loop(), kept.id

        def add(shards: list[Shard]) -> None:
            asyncio.run_coroutine_threadsafe(self._queue.add_shards(job, shards), loop).result()

        def run() -> ScanReport:
            work = self._places.work_of(job)
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            try:
                limits = ScanLimits(shard_size=self._shard_size, route=kept.details.endpoint)
                return scan(self._places.input_of(job), work, add, limits=limits, check=check)
            finally:
                shutil.rmtree(work, ignore_errors=True)

        return await asyncio.to_thread(run)

    async def write(
        self, kept: Kept, lacking: tuple[ErrorCode, str] | None, check: Callable[[], None]
    ) -> tuple[Tally, TokenDetails]:
        """Write the job's files. Requests without an outcome get the one that is `lacking`.

        Returns what the outcomes add up to, and what they tell of their tokens.
        """
        making, places = kept.details.making, self._places
        assert making is not None, "its files have no names"
        unfinished = None if lacking is None else _made_up(kept.job, places.input_of(kept.id), *lacking)
        shards = self._shards(kept, check)
        output, errors = places.file(making.output), places.file(making.errors)
        usage = UsageReader()
        tally = await asyncio.to_thread(
            finalise, kept.job, shards, places.journals, output, errors, unfinished, usage.read
        )
        return tally, usage.details()

    async def take_back_failures(self, kept: Kept, check: Callable[[], None]) -> None:
        """Remove failed outcomes from the journals of shards that are not settled."""
        shards = self._shards(kept, check, settled=False)

        def run() -> None:
            for shard in shards:
                drop_failed(kept.job, shard, self._places.journals)

        await asyncio.to_thread(run)

    async def recorded(self, job: Job) -> dict[int, Tally]:
        """What has been recorded of shards that are not settled, by number. Raises QueueError.

        These are the ones that were in hand when an earlier process ended, and those with failures to be sent
        again; the journals of the former are read, one at a time. One that cannot be read counts for nothing.
        """
        begun = await self._queue.keeping.begun(job.id)

        def run() -> dict[int, Tally]:
            tallies = ((each.shard.number, each.tally or self._tally_of(job, each.shard)) for each in begun)
            return {number: tally for number, tally in tallies if tally != Tally()}

        return await asyncio.to_thread(run) if begun else {}

    def _tally_of(self, job: Job, shard: Shard) -> Tally:
        try:
            return read_journal(journal_path(self._places.journals, job, shard), shard).tally
        except StorageError as error:  # the job says so when the shard is leased
            self._log.warning("journal_unreadable", job=job.id, shard=shard.number, error=str(error))
            return Tally()

    def _shards(
        self, kept: Kept, check: Callable[[], None], *, settled: bool | None = None
    ) -> Iterator[Shard]:
        records = self._queue.shards(kept.id, settled=settled)
        return _from_thread(records, asyncio.get_running_loop(), check)


def _from_thread(
    records: AsyncIterator[ShardRecord], loop: asyncio.AbstractEventLoop, check: Callable[[], None]
) -> Iterator[Shard]:
    async def following() -> list[Shard]:
        page: list[Shard] = []
        async for record in records:
            page.append(record.shard)
            if len(page) == SHARDS_AT_ONCE:
                break
        return page

    while page := asyncio.run_coroutine_threadsafe(following(), loop).result():
        for shard in page:
            check()
            yield shard


def _made_up(job: Job, path: Path, code: ErrorCode, message: str) -> Unfinished:
    payloads = FilePayloads(path)

    def unfinished(shard: Shard, missing: AbstractSet[int]) -> Iterable[Outcome]:
        for request in payloads.read_now(Lease(job, shard, 0)):
            if request.index in missing:
                yield Outcome(request.index, request.custom_id, code, message)

    return unfinished
