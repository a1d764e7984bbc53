"""What the queue needs of its database, be it SQLite or PostgreSQL."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncConnection

from dispatcher.model import JobId


class Topic(StrEnum):
    """What changed."""

    WORK = auto()  # shards are ready, or jobs wait to be driven
    JOB = auto()  # where a job is in its life, or what it is to be done with
    MEMBERS = auto()  # the servers that the nodes share


@dataclass(frozen=True, slots=True)
class News:
    """What other processes want to know at once."""

    topic: Topic
    job: JobId | None = None
    """None: of no job in particular."""


WORK = News(Topic.WORK)


class Transactions(Protocol):
    """Transactions on a database. Its failures are QueueErrors and StorageErrors.

    Where the answer to a commit is lost, nobody knows whether it was done. So whatever is done in `write`
    must be safe to be done again; what is not, belongs in `write_once`.
    """

    def write(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A transaction that changes something."""

    def write_once(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """The same, and if the answer to its commit is lost, it is found out whether it was done."""

    def read(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """Statements that only read. Each sees what was committed before it."""

    async def announce(self, connection: AsyncConnection, news: News) -> None:
        """Tell the other processes that wait, if and when this connection's transaction is committed."""
