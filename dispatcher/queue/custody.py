"""Which node takes which job through its life: one at a time, fenced as leases of shards are."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Insert,
    Select,
    Update,
    and_,
    insert,
    literal,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatcher.errors import CustodyLostError, JobMovedError
from dispatcher.model import JobId, NodeId
from dispatcher.queue.bell import Bell
from dispatcher.queue.schema import custody, jobs
from dispatcher.queue.transactions import WORK, Transactions
from dispatcher.queue.whole import whole

JOBS_PER_STATEMENT = 512
"""A statement's parameters are limited, and each takes four."""


@dataclass(frozen=True, slots=True)
class Custody:
    """A node's right to drive a job, until it expires. The epoch tells it from every other of the job."""

    job_id: JobId
    node: NodeId
    epoch: int


class Custodies:
    """The custody of all jobs. Every method is a transaction, and raises as SqlQueue's.

    A job is wanted from its creation until `retire`, and from a move on that says so: see Keeping.
    """

    def __init__(
        self, database: Transactions, bell: Bell, now: Callable[[], ColumnElement[float]], lease_s: float
    ) -> None:
        self._database = database
        self._bell = bell
        self._now = now
        self._lease_s = lease_s

    @whole
    async def take(self, node: NodeId, job_id: JobId) -> Custody | None:
        """Take one job, for the lease time; None where another node has it, or it is not wanted.

        A node that takes it again has a later epoch, and its earlier custody is void.
        """
        async with self._database.write() as connection:
            taken = self._taken(node).where(custody.c.job_id == job_id, self._is_free(node))
            epoch = await connection.scalar(taken.returning(custody.c.epoch))
        return None if epoch is None else Custody(job_id, node, epoch)

    @whole
    async def take_free(self, node: NodeId, want: int) -> Sequence[Custody]:
        """Take up to `want` jobs that no living node drives, the oldest first."""
        free = (
            select(custody.c.job_id)
            .select_from(custody.join(jobs))
            .where(self._is_free(None))
            .order_by(jobs.c.created_at, jobs.c.id)
            .limit(want)
            .with_for_update(of=custody, skip_locked=True)
        )
        async with self._database.write() as connection:
            job_ids = list(await connection.scalars(free))
            if not job_ids:
                return []
            taken = self._taken(node).where(custody.c.job_id.in_(job_ids))
            rows = await connection.execute(taken.returning(custody.c.job_id, custody.c.epoch))
            epochs: dict[JobId, int] = {row.job_id: row.epoch for row in rows}
        return [Custody(job_id, node, epochs[job_id]) for job_id in job_ids]

    @whole
    async def renew(self, held: Sequence[Custody]) -> Sequence[Custody]:
        """Prolong these by the lease time from now; return those that are lost."""
        renewed = update(custody).values(expires_at=self._now() + self._lease_s)
        returned = renewed.returning(custody.c.job_id, custody.c.node, custody.c.epoch)
        kept = set[tuple[Any, ...]]()
        async with self._database.write() as connection:
            for some in _batches(held):
                kept |= {tuple(row) for row in await connection.execute(returned.where(_among(some)))}
        return [each for each in held if _key(each) not in kept]

    @whole
    async def release(self, held: Sequence[Custody]) -> None:
        """Give jobs back, for any node to take at once; those that are lost already are left alone."""
        released = update(custody).values(node=None, expires_at=None)
        async with self._database.write() as connection:
            for some in _batches(held):
                await connection.execute(released.where(_among(some)))
            await self._database.announce(connection, WORK)
        self._bell.ring()

    @whole
    async def retire(self, held: Custody, details: Mapping[str, Any] | None = None) -> None:
        """A job has come to its end: no node is to take it. Raises CustodyLostError.

        With the details that say so: raises JobMovedError where they are others by now, for it goes on then.
        """
        async with self._database.write() as connection:
            await fence(connection, held)
            await require_details(connection, held.job_id, details)
            ended = update(custody).where(custody.c.job_id == held.job_id)
            await connection.execute(ended.values(wanted=False, expires_at=None))

    @whole
    async def holders(self) -> dict[JobId, NodeId]:
        """Which node drives which job just now."""
        held = select(custody.c.job_id, custody.c.node).where(
            custody.c.wanted, custody.c.node.is_not(None), custody.c.expires_at > self._now()
        )
        async with self._database.read() as connection:
            return {row.job_id: row.node for row in await connection.execute(held)}

    def _taken(self, node: NodeId) -> Update:
        return update(custody).values(
            node=node, epoch=custody.c.epoch + 1, expires_at=self._now() + self._lease_s
        )

    def _is_free(self, node: NodeId | None) -> ColumnElement[bool]:
        over = or_(custody.c.node.is_(None), custody.c.expires_at <= self._now())
        return and_(custody.c.wanted, over if node is None else or_(over, custody.c.node == node))


def wanted(job_id: JobId) -> Insert:
    """The row of a new job, which no node drives yet."""
    return insert(custody).values(job_id=job_id, wanted=True, epoch=0)


def wanted_again(job_id: JobId) -> Update:
    """A job that had come to its end is to go on. One that a node drives yet stays with it."""
    retired = update(custody).where(custody.c.job_id == job_id, custody.c.wanted.is_(False))
    return retired.values(wanted=True, node=None)


def lock(job_id: JobId) -> Select[Any]:
    """Have a job's custody before its row, in the order of whoever drives it: else there are deadlocks."""
    return select(literal(1)).select_from(custody).where(custody.c.job_id == job_id).with_for_update()


async def fence(connection: AsyncConnection, held: Custody) -> None:
    """Let the transaction go on only while this custody holds, and nobody take it over before its end.

    Raises CustodyLostError.
    """
    holds = select(literal(1)).select_from(custody).where(_among([held])).with_for_update()
    if await connection.scalar(holds) is None:
        raise CustodyLostError(
            f"job {held.job_id}: the custody of node {held.node} (epoch {held.epoch}) was taken over; "
            "whoever has it now goes on"
        )


async def fence_if(connection: AsyncConnection, held: Custody | None) -> None:
    """`fence`, where nodes share the queue: else there is nothing to hold."""
    if held is not None:
        await fence(connection, held)


async def require_details(
    connection: AsyncConnection, job_id: JobId, *details: Mapping[str, Any] | None
) -> None:
    """Let the transaction go on only while the job has some of these details, the first of which is not None.

    Nobody moves it before the transaction's end then. A job that is no more passes. Raises JobMovedError.
    Whoever fences a custody as well does that before: two orders of locks would be a deadlock.
    """
    if details[0] is None:
        return
    asked = select(jobs.c.details).where(jobs.c.id == job_id).with_for_update()
    found = (await connection.execute(asked)).one_or_none()
    if found is not None and found.details not in details:
        raise JobMovedError(f"job {job_id}: another node has moved it meanwhile")


def _batches(held: Sequence[Custody]) -> Iterator[Sequence[Custody]]:
    return (held[start : start + JOBS_PER_STATEMENT] for start in range(0, len(held), JOBS_PER_STATEMENT))


def _key(held: Custody) -> tuple[JobId, NodeId, int]:
    return held.job_id, held.node, held.epoch


def _among(held: Sequence[Custody]) -> ColumnElement[bool]:
    return and_(
        tuple_(custody.c.job_id, custody.c.node, custody.c.epoch).in_(map(_key, held)),
        # Implied, but SQLite finds rows by this.
        custody.c.job_id.in_([each.job_id for each in held]),
    )
