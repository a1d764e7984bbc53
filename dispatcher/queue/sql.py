"""The queue in SQL: what survives a kill, and what several nodes share."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, CursorResult, literal

from dispatcher.errors import QueueError
from dispatcher.model import Job, JobId, Lease, NodeId, QueueDepth, Shard, Tally
from dispatcher.ports import Clock
from dispatcher.queue import statements
from dispatcher.queue.bell import Bell
from dispatcher.queue.custody import Custodies, Custody, fence_if, wanted
from dispatcher.queue.database import open_sqlite
from dispatcher.queue.keeping import Keeping
from dispatcher.queue.leasing import Leasing
from dispatcher.queue.members import SharedMembers
from dispatcher.queue.nodes import Nodes
from dispatcher.queue.paging import page, tally
from dispatcher.queue.records import (
    JobRecord,
    JobStatus,
    ShardRecord,
    job_settings,
    lease_key,
    read_depth,
    read_job_record,
    read_shard_record,
    shard_row,
)
from dispatcher.queue.rejecting import reject
from dispatcher.queue.schema import jobs
from dispatcher.queue.transactions import WORK, News, Topic, Transactions
from dispatcher.queue.whole import whole


@asynccontextmanager
async def open_queue(
    path: Path,
    clock: Clock,
    *,
    lease_s: float = 60.0,
    network_filesystem: bool = False,
    busy_timeout_s: float = 10.0,
) -> AsyncIterator["SqlQueue"]:
    """Open the queue in an SQLite file, made if it is not there, and brought to this version's form.

    The clock's `wall()` is the time of all leases: every process that opens the file must be on this machine.
    On a network filesystem the file is locked for as long as it is open: one process, no others.
    `busy_timeout_s` is how long to wait for another process's transaction.

    Raises StateError when a newer dispatcher wrote the file; StorageError when the place cannot be read or
    written, or is full; QueueError when the file is locked or damaged. The methods raise the last two.
    """
    async with open_sqlite(
        path, network_filesystem=network_filesystem, busy_timeout_s=busy_timeout_s
    ) as database:
        yield SqlQueue(database, clock, lambda: literal(clock.wall()), lease_s)


class SqlQueue:
    """`ports.Queue` in a database, and what the application needs around it: jobs, and their shards.

    Every method is one transaction, done as a whole or not at all. A caller that is cancelled waits for its
    end, which is a matter of milliseconds.
    """

    def __init__(
        self, database: Transactions, clock: Clock, now: Callable[[], ColumnElement[float]], lease_s: float
    ) -> None:
        self._database = database
        self._now = now
        self._leasing = Leasing(now, lease_s)
        self._bell = Bell(clock)
        self._doubtful: dict[NodeId, dict[tuple[JobId, int, int], Lease]] = {}
        """Leases whose commit was not answered, or not yet: they may be the node's without its knowing."""
        self._asking = asyncio.Lock()
        """Held by a lease, so that no other one takes its leases for unanswered."""
        self.keeping = Keeping(database, self._bell, now)
        """What the service keeps beside the shards."""
        self.custody = Custodies(database, self._bell, now, lease_s)
        """Which node drives which job."""
        self.nodes = Nodes(database, self._bell, now)
        """Who shares the queue."""
        self.members = SharedMembers(database, now)
        """The servers that the nodes share."""
        self.listeners: list[Callable[[News | None], None]] = []
        """Told what other processes announce, and of None where some of it may have been missed."""

    # The node's side.

    @whole
    async def lease(self, node: NodeId, want: int, without: Collection[JobId] = ()) -> Sequence[Lease]:
        """Take shards in the queue's order until their requests reach `want`.

        If the caller is cancelled meanwhile, the shards are leased all the same, and become ready again when
        the lease expires.
        """
        doubtful = self._doubtful.setdefault(node, {})
        async with self._asking:
            async with self._database.write() as connection:
                leases = await self._leasing.renew(connection, node, [*doubtful.values()])
                if not leases:
                    leases = await self._leasing.take(connection, node, want, without)
                    doubtful.update((lease_key(lease), lease) for lease in leases)
            doubtful.clear()
        return leases

    @whole
    async def renew(self, node: NodeId, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Prolong these leases by the lease time from now; return those that are lost."""
        if not leases:
            return []
        async with self._database.write() as connection:
            held = await self._leasing.renew(connection, node, leases)
        kept = set(map(lease_key, held))
        return [lease for lease in leases if lease_key(lease) not in kept]

    @whole
    async def settle(self, node: NodeId, lease: Lease, tally: Tally) -> None:
        """Mark a shard as finished; again by the same lease, it changes nothing.

        Raises LeaseLostError where the lease is no longer the node's.
        """
        async with self._database.write() as connection:
            await self._leasing.settle(connection, node, lease, tally)

    @whole
    async def release(self, node: NodeId, leases: Sequence[Lease]) -> None:
        """Give shards back; those that are no longer the node's are left alone."""
        async with self._database.write() as connection:
            await self._leasing.release(connection, node, leases)
            await self._database.announce(connection, WORK)
        self._bell.ring()

    @whole
    async def depth(self) -> QueueDepth:
        """How much the active jobs have left. An expired lease counts as ready."""
        async with self._database.read() as connection:
            row = (await connection.execute(statements.depth(self._now()))).mappings().one()
        return read_depth(row)

    async def wait(self, timeout_s: float) -> None:
        """Return when there may be new work, or after `timeout_s`.

        Leases that expire, and on SQLite another process's changes, are seen by asking again after the time.
        """
        await self._bell.wait(timeout_s)

    def heard(self, news: News | None) -> None:
        """Another process announced this, or anything at all."""
        if news is None or news.topic is not Topic.MEMBERS:
            self._bell.ring()
        for listener in self.listeners:
            listener(news)

    # The application's side.

    @whole
    async def create_job(
        self, job: Job, details: dict[str, Any], *, priority: int = 0, weight: float = 1.0
    ) -> float:
        """Begin a job, in preparation, and return when. `details` is kept as JSON for the application.

        Jobs of a higher priority are served first; among equals, leased requests are kept proportional to
        the weight, which is above 0. Raises QueueError if there is a job of this id.
        """
        row = {"id": job.id, "settings": job_settings(job), "details": details}
        async with self._database.write_once() as connection:
            created = statements.create_job({**row, "priority": priority, "weight": weight}, self._now())
            created_at = (await connection.execute(created.returning(jobs.c.created_at))).scalar_one()
            await connection.execute(wanted(job.id))
            await self._database.announce(connection, News(Topic.JOB, job.id))
        return float(created_at)

    @whole
    async def discard_job(self, job_id: JobId) -> None:
        """Delete a job and its shards: one whose preparation was cut off, say."""
        async with self._database.write() as connection:
            await connection.execute(statements.discard_job(job_id))
            await self._database.announce(connection, News(Topic.JOB, job_id))

    @whole
    async def add_shards(self, job_id: JobId, shards: Sequence[Shard], held: Custody | None = None) -> None:
        """Append shards to a job. Raises QueueError for an unknown job, or a shard that is there already.

        With a custody they are appended only while that holds; raises CustodyLostError where it does not.
        """
        if not shards:
            return
        rows, rejected = sum(shard.count for shard in shards), sum(len(shard.rejected) for shard in shards)
        async with self._database.write_once() as connection:
            await fence_if(connection, held)
            counted = statements.count(job_id, shards=len(shards), rows=rows, rejected=rejected)
            _expect_job(job_id, await connection.execute(counted))
            await connection.execute(statements.add_shards(), [shard_row(job_id, shard) for shard in shards])
            await self._database.announce(connection, WORK)
        self._bell.ring()

    @whole
    async def reject(self, job_id: JobId, indexes: Iterable[int]) -> None:
        """Declare rows of a job in preparation to be no requests. Rejecting a row again changes nothing.

        Raises QueueError for a row that is in none of the job's shards.
        """
        async with self._database.write() as connection:
            rejected = await reject(connection, job_id, indexes)
            _expect_job(job_id, await connection.execute(statements.count(job_id, rejected=rejected)))

    async def activate(self, job_id: JobId) -> None:
        """Let the job's shards be leased."""
        await self.set_status(job_id, JobStatus.ACTIVE)

    async def finish_job(self, job_id: JobId) -> None:
        """Close the job: its shards are settled and its files are written."""
        await self.set_status(job_id, JobStatus.FINISHED)

    @whole
    async def set_status(self, job_id: JobId, status: JobStatus) -> None:
        """Move the job to a status. Leases that are held stay so. Raises QueueError for an unknown job."""
        async with self._database.write() as connection:
            _expect_job(job_id, await connection.execute(statements.set_status(job_id, status)))
            await self._database.announce(connection, News(Topic.JOB, job_id))
        self._bell.ring()

    @whole
    async def job(self, job_id: JobId) -> JobRecord | None:
        """The job, or None where there is none of this id."""
        async with self._database.read() as connection:
            row = (await connection.execute(statements.job(job_id))).mappings().one_or_none()
        return None if row is None else read_job_record(row)

    @whole
    async def jobs(self) -> Sequence[JobRecord]:
        """All jobs, the oldest first."""
        async with self._database.read() as connection:
            rows = (await connection.execute(statements.jobs_by_age())).mappings().all()
        return [read_job_record(row) for row in rows]

    @whole
    async def set_details(self, job_id: JobId, details: dict[str, Any]) -> None:
        """Replace what the application keeps with the job. Raises QueueError for an unknown job."""
        async with self._database.write() as connection:
            _expect_job(job_id, await connection.execute(statements.set_details(job_id, details)))

    @whole
    async def set_job(self, job: Job) -> None:
        """Replace the job's knobs, for all leases from now on. Raises QueueError for an unknown job."""
        async with self._database.write() as connection:
            changed = statements.set_settings(job.id, job_settings(job))
            _expect_job(job.id, await connection.execute(changed))

    @whole
    async def tally(self, job_id: JobId, by: NodeId | None = None) -> Tally:
        """What the outcomes of the job's settled shards add up to: of all, or of those a node has settled."""
        of_node = () if by is None else (statements.settled_by_node(by),)
        async with self._database.read() as connection:
            return await tally(connection, job_id, *of_node)

    async def shards(
        self, job_id: JobId, *, settled: bool | None = None, after: int = -1
    ) -> AsyncIterator[ShardRecord]:
        """The job's shards in order: all, the settled or the unsettled ones, of numbers above `after`.

        Pages of it are read as the iteration goes: shards that change meanwhile may show either way.
        """
        conditions = () if settled is None else (statements.is_settled(settled),)
        while page := await self._page(job_id, after, *conditions):
            for record in page:
                yield record
            after = page[-1].shard.number

    @whole
    async def reopen(self, job_id: JobId, *, only_failed: bool, held: Custody | None = None) -> Sequence[int]:
        """Make settled shards ready again: all, or those with failed outcomes. Returns their numbers.

        Their epochs go on growing, so that a late settle of an earlier lease stays fenced off.
        `held` as for `add_shards`.
        """
        conditions = (statements.has_failures(),) if only_failed else ()
        async with self._database.write_once() as connection:
            await fence_if(connection, held)
            rows = (await connection.execute(statements.reopen(job_id, *conditions))).all()
            requests = sum(row.requests for row in rows)
            counted = statements.count(job_id, shards_settled=-len(rows), requests_settled=-requests)
            _expect_job(job_id, await connection.execute(counted))
            await self._database.announce(connection, WORK)
        self._bell.ring()
        return sorted(row.number for row in rows)

    @whole
    async def release_all(self, node: NodeId | None = None) -> int:
        """Void every lease, of any node or of this one, and return how many there were.

        For who knows that whoever held them is dead: a single node that has just locked the state, say.
        """
        async with self._database.write() as connection:
            released = await connection.execute(statements.release_all(node))
            await self._database.announce(connection, WORK)
        self._bell.ring()
        return released.rowcount

    @whole
    async def _page(
        self, job_id: JobId, after: int, *conditions: ColumnElement[bool]
    ) -> Sequence[ShardRecord]:
        async with self._database.read() as connection:
            return [read_shard_record(row) for row in await page(connection, job_id, after, *conditions)]


def _expect_job(job_id: JobId, result: CursorResult[Any]) -> None:
    if result.rowcount == 0:
        raise QueueError(f"there is no job {job_id} in the queue")
