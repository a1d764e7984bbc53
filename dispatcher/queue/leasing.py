"""What a node does with leases, within a transaction of its own."""

from collections.abc import Callable, Collection, Iterable, Sequence

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatcher.model import JobId, Lease, NodeId, Tally
from dispatcher.queue import statements
from dispatcher.queue.choosing import choose
from dispatcher.queue.records import lease_key, lease_lost

LEASES_PER_STATEMENT = 512
"""The databases compare each row found with each lease named, and a statement's parameters are limited."""


class Leasing:
    """The statements of leases.

    Args:
        now: The time that leases are counted by.
        lease_s: How long they last.
    """

    def __init__(self, now: Callable[[], ColumnElement[float]], lease_s: float) -> None:
        self._now = now
        self._lease_s = lease_s

    async def take(
        self, connection: AsyncConnection, node: NodeId, want: int, without: Collection[JobId]
    ) -> list[Lease]:
        """Lease shards in the queue's order until their requests reach `want`."""
        leases = await choose(connection, want, self._now(), without)
        for batch in _batches(leases):
            await connection.execute(statements.claim(node, batch, self._now(), self._lease_s))
        return leases

    async def renew(self, connection: AsyncConnection, node: NodeId, leases: Sequence[Lease]) -> list[Lease]:
        """Prolong those that are still the node's, and return them."""
        held: set[tuple[JobId, int, int]] = set()
        for batch in _batches(leases):
            statement = statements.renew(node, batch, self._now(), self._lease_s)
            held.update(tuple(row) for row in await connection.execute(statement))
        return [lease for lease in leases if lease_key(lease) in held]

    async def settle(self, connection: AsyncConnection, node: NodeId, lease: Lease, tally: Tally) -> None:
        """Settle a shard, once. Raises LeaseLostError where the lease is no longer the node's."""
        requests = await connection.scalar(statements.settle(node, lease, tally, self._now()))
        if requests is not None:
            counted = statements.count(lease.job.id, shards_settled=1, requests_settled=requests)
            await connection.execute(counted)
        elif await connection.scalar(statements.settled_by(node, lease)) is None:
            raise lease_lost(node, lease)

    async def release(self, connection: AsyncConnection, node: NodeId, leases: Sequence[Lease]) -> None:
        """Give back those that are still the node's."""
        for batch in _batches(leases):
            await connection.execute(statements.release(node, batch))


def _batches(leases: Sequence[Lease]) -> Iterable[Sequence[Lease]]:
    size = LEASES_PER_STATEMENT
    return (leases[start : start + size] for start in range(0, len(leases), size))
