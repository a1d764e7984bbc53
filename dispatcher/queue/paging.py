"""A job's shards, read a page at a time."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatcher.model import JobId, Tally
from dispatcher.queue import statements
from dispatcher.queue.records import Row

PAGE_SHARDS = 1000
"""Shards read at once: bounds memory whatever the size of the job."""


async def page(
    connection: AsyncConnection, job_id: JobId, after: int, *conditions: ColumnElement[bool]
) -> Sequence[Row]:
    """The job's next shards after number `after`, as rows; empty where there are no more."""
    statement = statements.page(job_id, after, PAGE_SHARDS, *conditions)
    rows: Sequence[Row] = (await connection.execute(statement)).mappings().all()
    return rows


async def tally(connection: AsyncConnection, job_id: JobId, *conditions: ColumnElement[bool]) -> Tally:
    """What the outcomes of the job's settled shards add up to, of those that meet the conditions."""
    sums = (await connection.execute(statements.tally(job_id, *conditions))).mappings().one()
    total, after = Tally(**sums), -1
    while rows := await page(connection, job_id, after, statements.has_failures(), *conditions):
        for row in rows:
            total += Tally(errors=row["errors"])
        after = rows[-1]["number"]
    return total
