"""The queue's database on PostgreSQL: connections, transactions, and what happens while it is away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec
import structlog
from asyncpg.exceptions import ClientConfigurationError, InternalClientError
from sqlalchemy import ColumnElement, Double, String, cast, event, func, literal, select
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.types import UserDefinedType

from dispatcher.config import QueueUrl
from dispatcher.errors import ConfigError, DispatcherError, Fault, QueueError, QueueUnreachableError
from dispatcher.ports import Clock
from dispatcher.queue.migrations import require
from dispatcher.queue.postgresql_faults import FAILURES, fault
from dispatcher.queue.transactions import News
from dispatcher.queue.whole import whole

CHANNEL = "dispatcher"
"""Of NOTIFY. The payload is a topic, and a job's id after it: `job:batch_123`."""
CONNECTIONS_MAX = 5
"""Of a process, beside the one that listens: a node makes a few statements a second."""
CONNECT_S = 10.0
STATEMENT_S = 60.0
"""A statement that takes longer is taken for lost. Reopening 130,000 shards took 18 s, at a load of 20."""
FATE_S = 30.0
"""How long to ask what became of a commit whose answer was lost."""
FATE_PAUSE_S = 0.5
IDLE_S = 30.0
"""A connection that was not used for so long is tried first: firewalls forget it without a word."""
SERVER_SETTINGS = {
    "application_name": "dispatcher",
    "default_transaction_isolation": "read committed",
    # A process that is frozen within a transaction must not hold up the others with its locks.
    "idle_in_transaction_session_timeout": "10s",
    "tcp_user_timeout": "20s",
    # Every statement is written for an index. The planner cannot know how few of the open shards are leased,
    # knows nothing of a table that has just been filled, and may read millions of rows in place of ten.
    "enable_seqscan": "off",
    "plan_cache_mode": "force_custom_plan",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}


def database_time() -> ColumnElement[float]:
    """Seconds since the epoch by the database's clock, the same throughout a statement.

    Where a statement waits for a lock, its time has passed: leases are then a little shorter, never longer.
    """
    return cast(func.extract("epoch", func.statement_timestamp()), Double)


@asynccontextmanager
async def open_postgresql(url: QueueUrl, clock: Clock) -> AsyncIterator["PostgresDatabase"]:
    """Connections to the database of this URL, made when they are needed. The tables are not looked at."""
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=lambda **_options: connect(url),
        json_deserializer=msgspec.json.decode,
        pool_size=CONNECTIONS_MAX,
        max_overflow=0,
        hide_parameters=True,  # keys of servers are among them
    )
    _mind_connections(engine, clock)
    try:
        yield PostgresDatabase(engine, url.name, clock)
    finally:
        await engine.dispose()


async def connect(url: QueueUrl) -> "asyncpg.Connection[Any]":
    """A connection of its own. Raises what `FAILURES` has, and ConfigError for an option that cannot be."""
    try:
        return await asyncpg.connect(
            url.secret, timeout=CONNECT_S, command_timeout=STATEMENT_S, server_settings=SERVER_SETTINGS
        )
    except ClientConfigurationError as error:
        raise ConfigError((Fault("queue.url", url.without_secrets(str(error))),)) from None
    except InternalClientError as error:  # no host is what `target_session_attrs` asks for
        raise ConnectionError(0, url.without_secrets(str(error))) from None


class PostgresDatabase:
    """`Transactions` on PostgreSQL.

    An outage is logged when the first transaction meets it, and when one succeeds again.
    """

    def __init__(self, engine: AsyncEngine, name: str, clock: Clock) -> None:
        self._engine = engine
        self._reader = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._name = name
        self._clock = clock
        self._lost_at: float | None = None
        """When the outage began, by the monotonic clock; None where there is none."""
        self._log = structlog.get_logger("dispatcher.queue")

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """See Transactions. READ COMMITTED: what matters is in each statement's own WHERE, or locked."""
        async with self._watched(), self._engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def write_once(self) -> AsyncIterator[AsyncConnection]:
        """See Transactions. PostgreSQL remembers what became of a transaction, by its number."""
        number: str | None = None
        committing = False
        try:
            async with self.write() as connection:
                number = await connection.scalar(select(cast(func.pg_current_xact_id(), String)))
                yield connection
                committing = True
        except QueueUnreachableError:
            if not committing or number is None or not await self._was_committed(number):
                raise

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """See Transactions."""
        async with self._watched(), self._reader.connect() as connection:
            yield connection

    async def announce(self, connection: AsyncConnection, news: News) -> None:
        """See Transactions. Those of one transaction that are the same are told once."""
        payload = f"{news.topic.value}:{news.job or ''}"
        await connection.execute(select(func.pg_notify(literal(CHANNEL), literal(payload))))

    @whole
    async def require(self) -> str:
        """The revision of the tables. Raises StateError where this version cannot work with them."""
        async with self.read() as connection:
            return await connection.run_sync(require, self._name)

    async def _was_committed(self, number: str) -> bool:
        """Ask until the database answers. Raises QueueUnreachableError where it does not."""
        statement = select(func.pg_xact_status(cast(literal(number), _TransactionNumber)))
        deadline = self._clock.now() + FATE_S
        while True:
            try:
                async with self.read() as connection:
                    status = await connection.scalar(statement)
            except QueueUnreachableError as error:
                if self._clock.now() >= deadline:
                    raise QueueUnreachableError(f"{error}. It is not known what was done") from error
            except QueueError:  # a standby that was promoted knows of no such transaction
                return False
            else:
                if status != "in progress":
                    return bool(status == "committed")
            await self._clock.sleep(FATE_PAUSE_S)

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        try:
            yield
        except FAILURES as error:
            failed = fault(error, self._name)
            self._failed(failed)
            raise failed from error
        else:
            self._succeeded()

    def _failed(self, error: DispatcherError) -> None:
        if isinstance(error, QueueUnreachableError) and self._lost_at is None:
            self._lost_at = self._clock.now()
            self._log.error("queue_unreachable", error=str(error))

    def _succeeded(self) -> None:
        if self._lost_at is not None:
            seconds = round(self._clock.now() - self._lost_at, 1)
            self._lost_at = None
            self._log.info("queue_reachable", seconds=seconds)


class _TransactionNumber(UserDefinedType[str]):
    """PostgreSQL's xid8, which SQLAlchemy does not know."""

    cache_ok = True

    def get_col_spec(self, **_options: object) -> str:
        return "xid8"


def _mind_connections(engine: AsyncEngine, clock: Clock) -> None:
    """Keep dead connections from being used: after a restart of the database all of them are.

    A ping before each use, as SQLAlchemy has it, would cost a round trip for every transaction.
    """
    dialect = engine.sync_engine.dialect

    @event.listens_for(engine.sync_engine, "checkout")
    def checked_out(connection: Any, entry: ConnectionPoolEntry, _proxy: object) -> None:
        if connection.driver_connection.is_closed():
            raise DisconnectionError("it was closed")
        if clock.now() - entry.info.get("used_at", clock.now()) > IDLE_S:
            try:
                dialect.do_ping(connection)
            except FAILURES as error:
                raise DisconnectionError("it does not answer") from error

    @event.listens_for(engine.sync_engine, "checkin")
    def checked_in(_connection: object, entry: ConnectionPoolEntry) -> None:
        entry.info["used_at"] = clock.now()

    @event.listens_for(engine.sync_engine, "handle_error")
    def failed(context: ExceptionContext) -> None:
        """A connection on which a statement took too long is not used again."""
        if context.connection is not None and isinstance(context.original_exception, OSError):
            context.is_disconnect = True
