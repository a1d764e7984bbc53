"""How rows of shards that are in the database already are declared to be no requests."""

from collections.abc import Iterable

from sqlalchemy.ext.asyncio import AsyncConnection

from dispatcher.errors import QueueError
from dispatcher.model import JobId, Shard
from dispatcher.queue import statements
from dispatcher.queue.records import read_shard


async def reject(connection: AsyncConnection, job_id: JobId, indexes: Iterable[int]) -> int:
    """Reject these rows, two statements a shard; returns how many had not been rejected before."""
    remaining = sorted(set(indexes), reverse=True)
    rejected = 0
    while remaining:
        shard = await _shard_of_row(connection, job_id, remaining[-1])
        rejected += await _amend(connection, job_id, shard, _taken_below(remaining, shard))
    return rejected


async def _shard_of_row(connection: AsyncConnection, job_id: JobId, index: int) -> Shard:
    row = (await connection.execute(statements.shard_of_row(job_id, index))).mappings().one_or_none()
    if row is None or index >= row["first_index"] + row["count"]:
        raise QueueError(f"row {index} is in no shard of job {job_id}")
    return read_shard(row)


def _taken_below(descending: list[int], shard: Shard) -> set[int]:
    """Take the smallest indexes off the list, as far as they are the shard's."""
    taken = set()
    while descending and descending[-1] < shard.first_index + shard.count:
        taken.add(descending.pop())
    return taken


async def _amend(connection: AsyncConnection, job_id: JobId, shard: Shard, indexes: set[int]) -> int:
    rejected = sorted(indexes.union(shard.rejected))
    statement = statements.amend(job_id, shard.number, rejected, shard.count - len(rejected))
    await connection.execute(statement)
    return len(rejected) - len(shard.rejected)
