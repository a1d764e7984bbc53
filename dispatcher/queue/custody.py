"""Which node takes which job through its life: one at a time, fenced as leases of shards are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Insert, Update, and_, insert, literal, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatcher.errors import CustodyLostError
from dispatcher.model import JobId, NodeId
from dispatcher.queue.bell import Bell
from dispatcher.queue.schema import custody, jobs
from dispatcher.queue.transactions import WORK, News, Topic, Transactions
from dispatcher.queue.whole import whole


@dataclass(frozen=True, slots=True)
class Custody:
    """A node's right to drive a job, until it expires. The epoch tells it from every other of the job."""

    job_id: JobId
    node: NodeId
    epoch: int


class Custodies:
    """The custody of all jobs. Every method is a transaction, and raises as SqlQueue's.

    A job is wanted from its creation until `retire`, and from `offer` on.
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
        renewed = (
            update(custody)
            .where(_among(held))
            .values(expires_at=self._now() + self._lease_s)
            .returning(custody.c.job_id, custody.c.node, custody.c.epoch)
        )
        async with self._database.write() as connection:
            kept = {tuple(row) for row in await connection.execute(renewed)}
        return [each for each in held if _key(each) not in kept]

    @whole
    async def release(self, held: Sequence[Custody]) -> None:
        """Give jobs back, for any node to take at once; those that are lost already are left alone."""
        released = update(custody).where(_among(held)).values(node=None, expires_at=None)
        async with self._database.write() as connection:
            await connection.execute(released)
            await self._database.announce(connection, WORK)
        self._bell.ring()

    @whole
    async def retire(self, held: Custody) -> None:
        """A job has come to its end: no node is to take it. Raises CustodyLostError."""
        async with self._database.write() as connection:
            await fence(connection, held)
            ended = update(custody).where(custody.c.job_id == held.job_id)
            await connection.execute(ended.values(wanted=False, expires_at=None))

    @whole
    async def offer(self, job_id: JobId) -> None:
        """A job that had come to its end is to go on."""
        offered = update(custody).where(custody.c.job_id == job_id, custody.c.wanted.is_(False))
        async with self._database.write() as connection:
            await connection.execute(offered.values(wanted=True, node=None))
            await self._database.announce(connection, News(Topic.JOB, job_id))
        self._bell.ring()

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


def _key(held: Custody) -> tuple[JobId, NodeId, int]:
    return held.job_id, held.node, held.epoch


def _among(held: Sequence[Custody]) -> ColumnElement[bool]:
    return and_(
        tuple_(custody.c.job_id, custody.c.node, custody.c.epoch).in_(map(_key, held)),
        # Implied, but SQLite finds rows by this.
        custody.c.job_id.in_([each.job_id for each in held]),
    )
