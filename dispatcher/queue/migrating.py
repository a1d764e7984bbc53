"""Brings the tables of a shared queue to this version's form: only when it is told to, and by its owner."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, func, literal, select

from dispatcher.config import QueueUrl
from dispatcher.ports import Clock
from dispatcher.queue.migrations import HEAD, as_sql, revision_of, run
from dispatcher.queue.postgresql import PostgresDatabase, open_postgresql
from dispatcher.queue.schema import metadata
from dispatcher.queue.whole import whole

STAMPS = ("alembic_version", "compatibility")
"""What every user may read, and only the owner writes."""
LOCK = 0x6469_7370
"""The number of an advisory lock: of two who migrate at once one waits."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """From which revision to which. None: there were no tables."""

    before: str | None
    after: str


class Migration:
    """What may be done to the tables of one database. Raises as the queue's methods do."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    @whole
    async def revision(self) -> str | None:
        """The tables' revision; None where there are none."""
        async with self._database.read() as connection:
            return await connection.run_sync(revision_of)

    @whole
    async def run(self) -> Migrated:
        """Take the tables to HEAD, all or nothing. Tables that are newer stay as they are."""
        async with self._database.write() as connection:
            await connection.execute(select(func.pg_advisory_xact_lock(literal(LOCK))))
            before = await connection.run_sync(revision_of)
            if before is None or before < HEAD:
                await connection.run_sync(run)
        return Migrated(before, max(before or HEAD, HEAD))

    async def sql(self, role: str | None = None) -> str:
        """What `run` would execute, and `grant` if there is a role; nothing where there is nothing to do."""
        revision = await self.revision()
        migration = as_sql(revision) if revision is None or revision < HEAD else ""
        return migration + "".join(f"{each};\n" for each in await self._grants(role))

    @whole
    async def grant(self, role: str) -> None:
        """Let a role work on the queue, and not change its tables."""
        statements = await self._grants(role)
        async with self._database.write() as connection:
            for statement in statements:
                await connection.exec_driver_sql(statement)

    async def _grants(self, role: str | None) -> list[str]:
        if role is None:
            return []
        async with self._database.read() as connection:
            return await connection.run_sync(_grants, role)


@asynccontextmanager
async def open_migration(url: QueueUrl, clock: Clock) -> AsyncIterator[Migration]:
    """For the tables in this database."""
    async with open_postgresql(url, clock) as database:
        yield Migration(database)


def _grants(connection: Connection, role: str) -> list[str]:
    quote = connection.dialect.identifier_preparer.quote_identifier
    quoted, schema = quote(role), quote(str(connection.scalar(select(func.current_schema()))))
    worked_on = ", ".join(
        f"{schema}.{table.name}" for table in metadata.sorted_tables if table.name not in STAMPS
    )
    return [
        f"GRANT USAGE ON SCHEMA {schema} TO {quoted}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {worked_on} TO {quoted}",
        f"GRANT SELECT ON {', '.join(f'{schema}.{name}' for name in STAMPS)} TO {quoted}",
    ]
