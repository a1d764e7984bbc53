"""What the service keeps beside the shards: its files, and where each job is in its life."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, func, insert, literal, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatcher.errors import JobMovedError, QueueError
from dispatcher.model import Job, JobId, Shard, Tally
from dispatcher.queue import statements
from dispatcher.queue.bell import Bell
from dispatcher.queue.custody import Custody, fence_if, lock, require_details, wanted_again
from dispatcher.queue.records import JobStatus, Row, job_settings, read_job, read_shard
from dispatcher.queue.schema import files, jobs, shards
from dispatcher.queue.transactions import News, Topic, Transactions
from dispatcher.queue.whole import whole


@dataclass(frozen=True, slots=True)
class FileRecord:
    """An uploaded or a made file; its bytes lie in the storage directory. Times: seconds since the epoch."""

    id: str
    owner: str
    filename: str
    purpose: str
    bytes: int
    created_at: float
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class FilesWanted:
    """Which files to list. `owner` None is everybody; `after` is the id that the page before ended with."""

    owner: str | None
    limit: int
    purpose: str | None = None
    after: str | None = None
    ascending: bool = False


@dataclass(frozen=True, slots=True)
class Begun:
    """An open shard that has been leased before."""

    shard: Shard
    tally: Tally | None
    """What has succeeded in it, where it was reopened and not leased since; else its journal knows."""


class Keeping:
    """The service's part of the queue's database. Every method is a transaction, and raises as SqlQueue's."""

    def __init__(self, database: Transactions, bell: Bell, now: Callable[[], ColumnElement[float]]) -> None:
        self._database = database
        self._bell = bell
        self._now = now

    # Jobs

    @whole
    async def move(
        self,
        job_id: JobId,
        status: JobStatus,
        details: dict[str, Any],
        *,
        before: Mapping[str, Any] | None = None,
        held: Custody | None = None,
        wanted: bool = False,
    ) -> None:
        """Move a job to a status, with new details, together. Raises QueueError for an unknown job.

        With `before` it is moved only from these details; raises JobMovedError where they are others by now.
        With a custody it is moved only while that holds; raises CustodyLostError where it does not.
        `wanted`: it had come to its end, and goes on; some node is to drive it from now on.
        """
        async with self._database.write() as connection:
            await fence_if(connection, held)
            if wanted:  # locked although it may be wanted yet: whoever drives it may be about to retire it
                await connection.execute(lock(job_id))
                await connection.execute(wanted_again(job_id))
            await require_details(connection, job_id, before, details)
            await _move(connection, job_id, status, details)
            await self._database.announce(connection, News(Topic.JOB, job_id))
        self._bell.ring()

    @whole
    async def conclude(
        self,
        job_id: JobId,
        status: JobStatus,
        details: dict[str, Any],
        *,
        made: Sequence[FileRecord] = (),
        gone: Sequence[str] = (),
        before: Mapping[str, Any] | None = None,
        held: Custody | None = None,
    ) -> None:
        """Move a job together with the files that were `made` of it, in place of those that are `gone`.

        `before` and `held` as for `move`.
        """
        async with self._database.write_once() as connection:
            await fence_if(connection, held)
            await require_details(connection, job_id, before, details)
            await _move(connection, job_id, status, details)
            await connection.execute(delete(files).where(files.c.id.in_(gone)))
            if made:
                await connection.execute(insert(files), [asdict(record) for record in made])
            await self._database.announce(connection, News(Topic.JOB, job_id))

    @whole
    async def change(self, job: Job, weight: float, *, before: Job | None = None) -> None:
        """Replace a job's knobs, its priority and its weight, for all leases from now on.

        With `before` only where they are these; raises JobMovedError where they are others by now.
        """
        async with self._database.write() as connection:
            await _require_knobs(connection, before, job)
            changed = {"settings": job_settings(job), "priority": job.priority, "weight": weight}
            await connection.execute(update(jobs).where(jobs.c.id == job.id).values(changed))
            await self._database.announce(connection, News(Topic.JOB, job.id))
        self._bell.ring()

    @whole
    async def discard(self, job_id: JobId, before: Mapping[str, Any] | None = None) -> None:
        """Delete a job and its shards. One that is not there is no error. `before` as for `move`."""
        async with self._database.write() as connection:
            await connection.execute(lock(job_id))
            await require_details(connection, job_id, before)
            await connection.execute(statements.discard_job(job_id))
            await self._database.announce(connection, News(Topic.JOB, job_id))

    @whole
    async def details_with(self, name: str, text: str) -> Sequence[Mapping[str, Any]]:
        """The details, of all jobs, in which this text has that name. The database reads all jobs for it."""
        asked = select(jobs.c.details).where(jobs.c.details[name].as_string() == text)
        async with self._database.read() as connection:
            return list(await connection.scalars(asked))

    @whole
    async def clear(self, job_id: JobId, held: Custody | None = None) -> None:
        """Forget the shards of a job whose input is to be read anew. `held` as for `move`."""
        counts = ("shards", "rows", "rejected", "shards_settled", "requests_settled")
        async with self._database.write() as connection:
            await fence_if(connection, held)
            await connection.execute(delete(shards).where(shards.c.job_id == job_id))
            cleared = update(jobs).where(jobs.c.id == job_id).values(dict.fromkeys(counts, 0))
            await connection.execute(cleared)

    @whole
    async def leased(self, job_id: JobId) -> int:
        """How many open shards of the job some node has a lease of that has not expired."""
        open_shards = (shards.c.job_id == job_id, shards.c.settled_at.is_(None), shards.c.node.is_not(None))
        held = (*open_shards, shards.c.lease_expires_at > self._now())
        async with self._database.read() as connection:
            return int(await connection.scalar(select(func.count()).where(*held)) or 0)

    @whole
    async def settled(self) -> Mapping[JobId, int]:
        """How many shards are settled of each job that is active or paused."""
        open_jobs = jobs.c.status.in_((JobStatus.ACTIVE.value, JobStatus.PAUSED.value))
        asked = select(jobs.c.id, jobs.c.shards_settled).where(open_jobs)
        async with self._database.read() as connection:
            return {row.id: row.shards_settled for row in await connection.execute(asked)}

    @whole
    async def begun(self, job_id: JobId) -> Sequence[Begun]:
        """The job's open shards that have been leased before."""
        async with self._database.read() as connection:
            rows = (await connection.execute(statements.begun(job_id))).mappings()
            return [Begun(read_shard(row), _untouched(row)) for row in rows]

    # Files

    @whole
    async def add_file(self, record: FileRecord) -> None:
        """Keep a file whose bytes are in place."""
        async with self._database.write_once() as connection:
            await connection.execute(insert(files).values(asdict(record)))

    @whole
    async def file(self, file_id: str) -> FileRecord | None:
        """The file, or None where there is none of this id."""
        if not _is_text(file_id):
            return None
        statement = select(files).where(files.c.id == file_id)
        async with self._database.read() as connection:
            row = (await connection.execute(statement)).mappings().one_or_none()
        return None if row is None else FileRecord(**row)

    @whole
    async def list_files(self, wanted: FilesWanted, now: float) -> Sequence[FileRecord]:
        """A page of files by age, without those whose time is over; empty after an id that is not there."""
        async with self._database.read() as connection:
            last: Sequence[object] = ()
            if wanted.after is not None:
                if not _is_text(wanted.after):
                    return []
                found = select(*_AGE).where(files.c.id == wanted.after)
                row = (await connection.execute(found)).one_or_none()
                if row is None:
                    return []
                last = tuple(row)
            rows = (await connection.execute(_page(wanted, last, now))).mappings().all()
        return [FileRecord(**row) for row in rows]

    @whole
    async def remove_file(self, file_id: str) -> None:
        """Forget a file. One that is not there is no error."""
        async with self._database.write() as connection:
            await connection.execute(delete(files).where(files.c.id == file_id))

    @whole
    async def files_expired(self, now: float) -> Sequence[str]:
        """The ids of files whose time is over."""
        async with self._database.read() as connection:
            return list(await connection.scalars(select(files.c.id).where(files.c.expires_at <= now)))

    @whole
    async def file_ids(self) -> set[str]:
        """The ids of all files."""
        async with self._database.read() as connection:
            return set(await connection.scalars(select(files.c.id)))


def _is_text(asked: str) -> bool:
    """Whether it can be an id. PostgreSQL has no text with a NUL, and refuses to look for it."""
    return "\0" not in asked


def _untouched(row: Row) -> Tally | None:
    if row["succeeded"] is None:
        return None
    return Tally(row["succeeded"], 0, row["prompt_tokens"], row["completion_tokens"])


_AGE = (files.c.created_at, files.c.id)


def _page(wanted: FilesWanted, last: Sequence[object], now: float) -> Select[Any]:
    is_there = or_(files.c.expires_at.is_(None), files.c.expires_at > now)
    statement = select(files).where(is_there).limit(wanted.limit)
    if wanted.owner is not None:
        statement = statement.where(files.c.owner == wanted.owner)
    if wanted.purpose is not None:
        statement = statement.where(files.c.purpose == wanted.purpose)
    if last:
        age, end = tuple_(*_AGE), tuple_(*map(literal, last))
        statement = statement.where(age > end if wanted.ascending else age < end)
    return statement.order_by(*(_AGE if wanted.ascending else (column.desc() for column in _AGE)))


async def _require_knobs(connection: AsyncConnection, before: Job | None, after: Job) -> None:
    if before is None:
        return
    asked = select(jobs.c.settings, jobs.c.weight).where(jobs.c.id == before.id).with_for_update()
    found = (await connection.execute(asked)).mappings().one_or_none()
    if found is not None and read_job(dict(found)) not in (before, after):
        raise JobMovedError(f"job {before.id}: its knobs were changed meanwhile")


async def _move(
    connection: AsyncConnection, job_id: JobId, status: JobStatus, details: dict[str, Any]
) -> None:
    moved = update(jobs).where(jobs.c.id == job_id).values(status=status.value, details=details)
    if (await connection.execute(moved)).rowcount == 0:
        raise QueueError(f"there is no job {job_id} in the queue")
