"""Outcomes made durable in one journal per shard: appended at once, written soon, synced in groups."""

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import structlog

from dispatcher.errors import StateError, StorageError
from dispatcher.model import Grudge, JobId, Lease, Outcome, Request
from dispatcher.ports import Clock, Recorded, Replay
from dispatcher.results.disk import Disk, LocalDisk
from dispatcher.results.group_commit import Batch, GroupCommit, OpenShard, Report, execute
from dispatcher.results.journal import encode_grudge, encode_record, journal_path, repair_journal
from dispatcher.results.journal_file import JournalFile, Note, OpenFiles
from dispatcher.results.mailbox import Mailbox

_WRITE_INTERVAL_S: Final = 0.01
"""Between two writes: what a killed process can lose, and what keeps the system calls few."""
_SYNC_BUDGET_S: Final = 0.01
"""How long syncing may hold up the next write."""
_RETRY_S: Final = 1.0
"""Between two tries to write while the disk refuses."""


class JournalRecorder:
    """Records outcomes in journals under a directory; when its `async with` ends, all of them are durable.

    `append` only encodes and buffers. One task gives the buffers to the operating system about every 10 ms,
    so that a killed process loses no more than that, and syncs the files every `sync_s`, after which their
    outcomes are announced by `recorded`. While the disk refuses (it is full, say) everything waits in
    memory, `obstacle` says why, and writing is tried again every second.

    Args:
        directory: Where the journals are; made where it is missing.
        clock: Time for intervals and retries.
        sync_s: Seconds between group commits. 0 syncs after every write.
        disk: Where to write; this machine's by default.
        files_max: How many journals may hold a descriptor at a time.
        on_sync: Told the seconds that each sync of a file took.
        path_of: Where a lease's journal is, if not where `journal_path` says.

    Its end raises StorageError where the last outcomes cannot be made durable, saying how many they are.
    """

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        *,
        sync_s: float = 1.0,
        disk: Disk | None = None,
        files_max: int = 512,
        on_sync: Callable[[float], None] = lambda _seconds: None,
        path_of: Callable[[Lease], Path] | None = None,
    ) -> None:
        self._path_of = path_of or (lambda lease: journal_path(directory, lease.job, lease.shard))
        self._clock = clock
        self._disk = disk or LocalDisk()
        self._files = OpenFiles(files_max)
        self._on_sync = on_sync
        self._shards: dict[tuple[JobId, int], OpenShard] = {}
        self._commits = GroupCommit(sync_s)
        self._mailbox = Mailbox()
        self._obstacle: str | None = None
        self._wake = asyncio.Event()
        self._stopping = False
        self._tasks = asyncio.TaskGroup()
        self._log = structlog.get_logger("dispatcher.recorder")

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._writer = self._tasks.create_task(self._write_until_stopped(), name="journal-writer")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finisher = asyncio.create_task(self._finish(), name="journal-finisher")
        try:
            await asyncio.shield(self._finisher)
        finally:
            await self._tasks.__aexit__(kind, error, trace)

    @property
    def obstacle(self) -> str | None:
        """Why nothing can be recorded just now, or None."""
        return self._obstacle

    async def open(self, lease: Lease, requests: Sequence[Request]) -> Replay:
        """Begin a shard, as Recorder says. A journal that a crash has damaged is repaired first.

        Raises StorageError where the journal cannot be read or repaired, StateError where the shard is open.
        """
        if _key(lease) in self._shards:
            raise StateError(f"shard {lease.shard.number} of job {lease.job.id} is being recorded already")
        path = self._path_of(lease)
        custom_ids = {request.index: request.custom_id for request in requests}
        contents = await asyncio.to_thread(repair_journal, path, lease.shard, custom_ids)
        self._shards[_key(lease)] = OpenShard(lease, JournalFile(path, contents.length, self._disk))
        return Replay(frozenset(contents.outcomes), contents.tally, contents.grudges)

    def append(self, lease: Lease, outcome: Outcome) -> None:
        """Hand over an outcome of an open shard, as Recorder says."""
        self._commits.append(self._shards[_key(lease)], encode_record(outcome, lease.job))
        self._wake.set()

    def remember(self, lease: Lease, index: int, grudge: Grudge) -> None:
        """Keep what is held against a request of an open shard, as Recorder says."""
        self._commits.append(self._shards[_key(lease)], Note(encode_grudge(index, grudge)))
        self._wake.set()

    async def recorded(self) -> Sequence[Recorded]:
        """Wait for the next outcomes to become durable, as Recorder says."""
        return await self._mailbox.take()

    async def close(self, lease: Lease) -> None:
        """End a shard, as Recorder says. Waits out an obstacle; does nothing where the shard is not open.

        Should the writer itself have failed, the context's end says so, and nothing is waited for here.
        """
        shard = self._shards.get(_key(lease))
        if shard is None:
            return
        self._commits.end(shard)
        self._wake.set()
        closed = asyncio.create_task(shard.closed.wait())
        try:
            await asyncio.wait({closed, self._writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()

    def hasten(self, lease: Lease) -> None:
        """Sync a shard now, as Recorder says: each file needs a sync of its own, so none is wasted."""
        self._commits.hasten(self._shards[_key(lease)])
        self._wake.set()

    async def _write_until_stopped(self) -> None:
        while not self._stopping:
            await self._wake.wait()
            await self._commit(self._clock.now(), _SYNC_BUDGET_S)
            await self._clock.sleep(_RETRY_S if self._obstacle else _WRITE_INTERVAL_S)

    async def _commit(self, now: float, sync_budget_s: float) -> None:
        batch = self._commits.next(now)
        if batch.due:
            report = await asyncio.to_thread(execute, batch, self._files, self._clock, sync_budget_s)
            self._note(batch, report)
        if self._commits.idle:
            self._wake.clear()

    def _note(self, batch: Batch, report: Report) -> None:
        self._see(str(report.errors[0]) if report.errors else None)
        durable, ended = self._commits.done(batch, report)
        for recorded in durable:
            self._mailbox.put(recorded)
        for shard in ended:
            del self._shards[_key(shard.lease)]
            shard.closed.set()
        for seconds in report.sync_seconds:
            self._on_sync(seconds)

    def _see(self, obstacle: str | None) -> None:
        """Said when it comes and when it goes, not each time that writing is tried."""
        if obstacle is not None and self._obstacle is None:
            self._log.error("recording_failed", error=obstacle)
        elif obstacle is None and self._obstacle is not None:
            self._log.info("recording_again")
        self._obstacle = obstacle

    async def _finish(self) -> None:
        self._stopping = True
        self._wake.set()
        await asyncio.wait([self._writer])
        await self._commit(math.inf, math.inf)
        await asyncio.to_thread(self._files.close_all)
        if self._obstacle:
            raise StorageError(
                f"{self._obstacle}; {self._commits.owing} outcomes are not recorded, and their requests will"
                " be sent again when the job is resumed. What was recorded before is safe"
            )


def _key(lease: Lease) -> tuple[JobId, int]:
    return lease.job.id, lease.shard.number
