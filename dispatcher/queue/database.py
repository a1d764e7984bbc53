"""The connection to the queue's database: how it is opened, and how its failures become ours."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import msgspec
from sqlalchemy import URL, Connection, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as BusyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from dispatcher.errors import DispatcherError, QueueError, StorageError
from dispatcher.queue.migrations import upgrade
from dispatcher.queue.transactions import News
from dispatcher.queue.whole import whole

_FAULTS: dict[int, tuple[type[DispatcherError], str]] = {
    sqlite3.SQLITE_FULL: (
        StorageError,
        "no space is left on its disk. Free some: nothing that was recorded is lost",
    ),
    sqlite3.SQLITE_IOERR: (
        StorageError,
        "its disk failed to read or write. Check the disk, its quota and, on a network, the mount",
    ),
    sqlite3.SQLITE_READONLY: (
        StorageError,
        "it cannot be written. Check the permissions of the file and of its directory",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        StorageError,
        "it cannot be opened. Check that its directory exists and may be written",
    ),
    sqlite3.SQLITE_BUSY: (
        QueueError,
        "another process has locked it. Stop that process, or try again",
    ),
    sqlite3.SQLITE_CORRUPT: (
        QueueError,
        "it is damaged. Put back a copy of the state directory, or begin anew with --restart",
    ),
    sqlite3.SQLITE_NOTADB: (
        QueueError,
        "it is not an SQLite database. Name another file, or move this one away",
    ),
    sqlite3.SQLITE_CONSTRAINT: (
        QueueError,
        "it refused a row that is there already, or is out of bounds",
    ),
}
"""By primary result code, https://sqlite.org/rescode.html."""

_PRIMARY_CODE = 0xFF  # the rest of an extended result code only says more of the same


class Database:
    """`Transactions` on an SQLite file. A failure of it leaves here as a QueueError or a StorageError.

    A transaction must not be cancelled: see `whole`.
    """

    def __init__(self, engine: AsyncEngine, name: str) -> None:
        self._reader = engine
        self._writer = engine.execution_options(begin="BEGIN IMMEDIATE")
        self._name = name

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that no other writer can come into."""
        with _translated(self._name):
            async with self._writer.begin() as connection:
                yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads, and waits for no writer where the database allows it."""
        with _translated(self._name):
            async with self._reader.connect() as connection:
                yield connection

    write_once = write  # SQLite's commits are answered

    async def announce(self, connection: AsyncConnection, news: News) -> None:
        """Nobody is told: other processes on the file ask again by themselves."""

    @whole
    async def upgrade(self) -> None:
        """Bring the tables to this version's form. Raises StateError if a newer dispatcher wrote them."""
        async with self.write() as connection:
            await connection.run_sync(upgrade, self._name)


@asynccontextmanager
async def open_sqlite(
    path: Path, *, network_filesystem: bool, busy_timeout_s: float
) -> AsyncIterator[Database]:
    """Open a file, made if it is not there. Its one connection serves one transaction after the other."""
    await asyncio.to_thread(_make_file, path)
    if not network_filesystem:
        await asyncio.to_thread(_set_wal, path, busy_timeout_s)
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(path)),
        connect_args={"timeout": busy_timeout_s},
        json_deserializer=msgspec.json.decode,  # a service reads thousands of jobs at its start
        pool_size=1,
        max_overflow=0,
        hide_parameters=True,  # keys of servers are among them
    )
    _control_transactions(engine, _local_pragmas() if not network_filesystem else _network_pragmas())
    database = Database(engine, str(path))
    try:
        await database.upgrade()
        yield database
    finally:
        await engine.dispose()


def _make_file(path: Path) -> None:
    """Make sure that the file can be opened: aiosqlite's thread outlives the event loop if it cannot."""
    try:
        with path.open("ab"):
            pass
    except OSError as exc:
        raise StorageError(
            f"the queue's database {path} cannot be opened for writing: {exc.strerror}"
        ) from exc


def _set_wal(path: Path, busy_timeout_s: float) -> None:
    """Change the journal mode here, once: two that change a new file's at once are told that it is locked.

    SQLite says so at once, whatever the busy timeout, so it is asked again. Any other fault is left to
    whoever opens the file: it says what to do.
    """
    until = time.monotonic() + busy_timeout_s
    while time.monotonic() < until:
        try:
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                return
            time.sleep(0.02)
        else:
            return


def _local_pragmas() -> tuple[str, ...]:
    return ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON")


def _network_pragmas() -> tuple[str, ...]:
    # WAL needs shared memory, which machines do not share (https://sqlite.org/wal.html), and the locks of
    # network filesystems are not to be relied on while others come and go: take one, and keep it.
    return ("locking_mode = EXCLUSIVE", "journal_mode = DELETE", "synchronous = FULL", "foreign_keys = ON")


def _control_transactions(engine: AsyncEngine, pragmas: tuple[str, ...]) -> None:
    """Let SQLAlchemy begin every transaction, for Python's sqlite3 begins some statements' only.

    As https://docs.sqlalchemy.org/en/21/dialects/sqlite.html#sqlite-transactions tells to. A transaction
    that reads first and then writes must begin IMMEDIATE, or it fails when another writer came between.
    """

    @event.listens_for(engine.sync_engine, "connect")
    def connected(connection: DBAPIConnection, _record: object) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def began(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except DBAPIError as exc:
        raise _fault(exc, name) from exc
    except BusyError as exc:
        raise QueueError(
            f"the queue's database {name}: the transactions before take too long ({exc})"
        ) from exc


def _fault(exc: DBAPIError, name: str) -> DispatcherError:
    code = getattr(exc.orig, "sqlite_errorcode", 0)  # set by the library, not by the driver's own errors
    kind, advice = _FAULTS.get(code & _PRIMARY_CODE, (QueueError, "it failed"))
    return kind(f"the queue's database {name}: {advice} ({exc.orig})")
