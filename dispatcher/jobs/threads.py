"""What reads or writes whole files of a job, and ends soon once it is told to."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import structlog

from dispatcher.errors import StorageError
from dispatcher.ingest.findings import ScanReport
from dispatcher.ingest.scan import scan
from dispatcher.ingest.sharding import TAIL_SHARE, ScanLimits
from dispatcher.jobs.archive import Archive, Lacking
from dispatcher.jobs.details import TokenDetails
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.usage import UsageReader
from dispatcher.model import Job, Shard, Tally
from dispatcher.queue.keeping import Begun
from dispatcher.queue.sql import SqlQueue

JOURNALS_AT_ONCE = 8
"""Read at the start: of a store each takes a tenth of a second, and each is held in memory."""


class Paperwork:
    """The work on a job's input and outcomes. `check` is called now and then; StoppedError from it ends it.

    `work` is a directory for what nothing outlives. Where nodes have jobs in common (`shared`), the last
    shards of each are small.
    """

    def __init__(
        self, queue: SqlQueue, archive: Archive, work: Path, shard_size: int, *, shared: bool = False
    ) -> None:
        self._queue = queue
        self._archive = archive
        self._work = work
        self._shard_size = shard_size
        self._tail_size = max(1, shard_size // TAIL_SHARE) if shared else None
        self._log = structlog.get_logger("dispatcher.jobs")

    async def read(self, kept: Kept, check: Callable[[], None]) -> ScanReport:
        """Check the job's input, and give the queue its shards. Raises InputError, StorageError."""
        loop, job, held = asyncio.get_running_loop(), kept.id, kept.held

        def add(shards: list[Shard]) -> None:
            asyncio.run_coroutine_threadsafe(self._queue.add_shards(job, shards, held), loop).result()

        def run() -> ScanReport:
            work = self._work / job
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            try:
                limits = ScanLimits(
                    shard_size=self._shard_size, tail_size=self._tail_size, route=kept.details.endpoint
                )
                with self._archive.input(kept) as file:
                    return scan(file, work, add, limits=limits, check=check)
            finally:
                shutil.rmtree(work, ignore_errors=True)

        return await asyncio.to_thread(run)

    async def write(
        self, kept: Kept, lacking: Lacking | None, check: Callable[[], None]
    ) -> tuple[Tally, TokenDetails]:
        """Write the job's files. Requests without an outcome get the one that is `lacking`.

        Returns what the outcomes add up to, and what they tell of their tokens.
        """
        usage = UsageReader()
        shards = self._queue.shards(kept.id)
        tally = await self._archive.write(kept, shards, lacking, usage.read, check)
        return tally, usage.details()

    async def take_back_failures(self, kept: Kept, check: Callable[[], None]) -> None:
        """Remove failed outcomes from the journals of shards that are not settled."""
        shards = self._queue.shards(kept.id, settled=False)
        await self._archive.take_back_failures(kept.job, shards, check)

    async def recorded(self, job: Job) -> dict[int, Tally]:
        """What has been recorded of shards that are not settled, by number. Raises QueueError.

        These are the ones that were in hand when an earlier process ended, and those with failures to be sent
        again; the journals of the former are read, some at once. One that cannot be read counts for nothing.
        """
        begun, tallies = await self._queue.keeping.begun(job.id), dict[int, Tally]()
        for start in range(0, len(begun), JOURNALS_AT_ONCE):
            some = begun[start : start + JOURNALS_AT_ONCE]
            found = await asyncio.gather(*(self._tally_of(job, each) for each in some))
            tallies |= {each.shard.number: tally for each, tally in zip(some, found, strict=True)}
        return {number: tally for number, tally in tallies.items() if tally != Tally()}

    async def _tally_of(self, job: Job, begun: Begun) -> Tally:
        if begun.tally is not None:
            return begun.tally
        try:
            return (await self._archive.contents(job, begun.shard, None)).tally
        except StorageError as error:  # the job says so when the shard is leased
            self._log.warning("journal_unreadable", job=job.id, shard=begun.shard.number, error=str(error))
            return Tally()
