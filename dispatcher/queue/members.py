"""The servers that an admin added or held out and those that registered, for all nodes of one queue."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Any

from sqlalchemy import ColumnElement, Delete, Row, and_, delete, insert, literal, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatcher.queue.schema import members
from dispatcher.queue.transactions import News, Topic, Transactions
from dispatcher.queue.whole import whole

CHANGED = News(Topic.MEMBERS)


class MemberKind(StrEnum):
    """Why a server is kept here. One may be added and held out at once."""

    ADDED = auto()
    REGISTERED = auto()
    HELD_OUT = auto()


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """One server of one kind."""

    url: str
    kind: MemberKind
    entry: dict[str, Any] = field(default_factory=dict, repr=False)
    """The rest of its settings, its key among them: they are kept and not looked at."""
    token: str | None = None
    """The name of the token that registered it."""


class SharedMembers:
    """The table of members. Every method is a transaction, and raises as SqlQueue's."""

    def __init__(self, database: Transactions, now: Callable[[], ColumnElement[float]]) -> None:
        self._database = database
        self._now = now

    @whole
    async def put(self, record: MemberRecord, ttl_s: float | None = None) -> None:
        """Keep this, in place of what was kept of the same server and kind; for good, or for so long.

        A server that registers again with the same settings is no news.
        """
        async with self._database.write() as connection:
            await self._put(connection, record, ttl_s)

    @whole
    async def put_all(self, records: Collection[MemberRecord]) -> None:
        """Keep these for good, all of them or none; as `put`."""
        async with self._database.write() as connection:
            for record in sorted(records, key=lambda each: (each.url, each.kind)):  # no two wait in a circle
                await self._put(connection, record, None)

    @whole
    async def claim(self, record: MemberRecord, ttl_s: float) -> bool:
        """As `put` for so long, unless the server is another token's still: False."""
        async with self._database.write() as connection:
            return await self._put(connection, record, ttl_s, yielding=True)

    @whole
    async def remove(self, kind: MemberKind, urls: Collection[str], token: str | None = None) -> int:
        """Forget these, or only what this token registered; return how many there were."""
        removal = _removal(kind, urls)
        if token is not None:
            removal = removal.where(members.c.token == token)
        async with self._database.write() as connection:
            removed = (await connection.execute(removal)).rowcount
            if removed:
                await self._database.announce(connection, CHANGED)
        return removed

    @whole
    async def list(self) -> Sequence[MemberRecord]:
        """All whose time is not over, by address."""
        found = select(members).where(self._lives()).order_by(members.c.url, members.c.kind)
        async with self._database.read() as connection:
            rows = (await connection.execute(found)).all()
        return [MemberRecord(row.url, MemberKind(row.kind), row.entry, row.token) for row in rows]

    @whole
    async def expire(self) -> Sequence[str]:
        """Forget those whose time is over; return their addresses."""
        over = delete(members).where(members.c.expires_at <= self._now()).returning(members.c.url)
        async with self._database.write() as connection:
            return sorted(await connection.scalars(over))

    async def _put(
        self,
        connection: AsyncConnection,
        record: MemberRecord,
        ttl_s: float | None,
        *,
        yielding: bool = False,
    ) -> bool:
        expires_at = literal(None) if ttl_s is None else self._now() + ttl_s
        row = {"entry": record.entry, "token": record.token, "expires_at": expires_at}
        before = await self._before(connection, record)
        if before is None and not await _inserted(connection, record, row):
            before = await self._before(connection, record)  # another node was told of it at the same time
        if before is not None:
            if yielding and before.lives and before.token != record.token:
                return False
            await connection.execute(update(members).where(_is(record)).values(row))
        kept = before is not None and before.lives
        if before is None or not kept or (before.entry, before.token) != (record.entry, record.token):
            await self._database.announce(connection, CHANGED)
        return True

    async def _before(self, connection: AsyncConnection, record: MemberRecord) -> Row[Any] | None:
        columns = (members.c.entry, members.c.token, self._lives().label("lives"))
        found = select(*columns).where(_is(record)).with_for_update()
        return (await connection.execute(found)).one_or_none()

    def _lives(self) -> ColumnElement[bool]:
        return or_(members.c.expires_at.is_(None), members.c.expires_at > self._now())


def _is(record: MemberRecord) -> ColumnElement[bool]:
    return and_(members.c.url == record.url, members.c.kind == record.kind.value)


async def _inserted(connection: AsyncConnection, record: MemberRecord, row: dict[str, Any]) -> bool:
    try:
        async with connection.begin_nested():
            await connection.execute(insert(members).values(url=record.url, kind=record.kind.value, **row))
    except IntegrityError:
        return False
    return True


def _removal(kind: MemberKind, urls: Collection[str]) -> Delete:
    return delete(members).where(members.c.kind == kind.value, members.c.url.in_(list(urls)))
