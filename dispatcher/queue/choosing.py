"""Which shards a lease takes from the database: read under its lock, decided by `fairness`."""

from collections.abc import Collection

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatcher.model import JobId, Lease
from dispatcher.queue import statements
from dispatcher.queue.fairness import Share, Turns
from dispatcher.queue.records import Row, read_job, read_next_lease

PAGE_SHARDS_MAX = 1000
"""Shards read at once, whatever is wanted."""


async def choose(
    connection: AsyncConnection, want: int, now: ColumnElement[float], without: Collection[JobId] = ()
) -> list[Lease]:
    """The leases that `want` requests make, none of the jobs `without`, not yet claimed."""
    jobs = (await connection.execute(statements.shares(now, without))).mappings().all()
    ready = {job["id"]: _ReadyShards(connection, job, want, now) for job in jobs}
    turns = Turns(map(_read_share, jobs), want)
    leases = []
    while (job_id := turns.next()) is not None:
        lease = await ready[job_id].take()
        if lease is None:
            turns.exhausted(job_id)
        else:
            turns.took(job_id, lease.shard.requests)
            leases.append(lease)
    return leases


class _ReadyShards:
    """One job's ready shards in order, read a page at a time."""

    def __init__(self, connection: AsyncConnection, job: Row, want: int, now: ColumnElement[float]) -> None:
        self._connection = connection
        self._job = read_job(job)
        self._now = now
        requests_mean = max(1, (job["rows"] - job["rejected"]) // job["shards"])
        self._limit = min(want // requests_mean + 1, PAGE_SHARDS_MAX)
        self._page: list[Row] = []
        self._after = -1

    async def take(self) -> Lease | None:
        if not self._page:
            await self._read()
        return read_next_lease(self._job, self._page.pop()) if self._page else None

    async def _read(self) -> None:
        statement = statements.ready(self._job.id, self._after, self._now, self._limit)
        rows = (await self._connection.execute(statement)).mappings().all()
        self._page = list(reversed(rows))
        self._after = rows[-1]["number"] if rows else self._after


def _read_share(row: Row) -> Share:
    return Share(row["id"], row["leased"], row["created_at"], row["priority"], row["weight"])
