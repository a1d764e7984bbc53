"""Servers that come and go while the services run which share a queue: what one is told, all know."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import structlog
from pydantic import SecretStr, ValidationError

from dispatcher.api.members import Member, MemberError
from dispatcher.app.members import (
    ADDED,
    LOOKUPS_MAX,
    REGISTERED,
    Members,
    check_addition,
    check_listed,
    check_removal,
    load_members,
    members_of,
    read_saved,
    saved_server,
)
from dispatcher.app.seen_members import LOOK_S_MAX, LOOKS, PAUSE_S, Seen
from dispatcher.app.sources import Membership, Source
from dispatcher.config import Config, RegistrationSettings, ServerEntry
from dispatcher.discovery.registration import REGISTERED_MAX, Lookup, RegistrationError, locate
from dispatcher.discovery.static import expand_servers
from dispatcher.errors import QueueError, StorageError
from dispatcher.model import ServerId, ServerSpec
from dispatcher.ports import Clock
from dispatcher.queue.bell import Bell
from dispatcher.queue.members import MemberKind, MemberRecord, SharedMembers
from dispatcher.queue.sql import SqlQueue
from dispatcher.queue.transactions import News, Topic

EXPIRE_S = 30.0
"""Between two times that those which are over are deleted. They are not listed as it is."""


def choose_members(config: Config, path: Path, clock: Clock) -> "Members | JointMembers":
    """The members that are not configured: in the database of a queue that has one, or else at `path`.

    Blocks. Raises as `read_saved` does.
    """
    if config.queue.url is None:
        return load_members(config, path, clock)
    saved = read_saved(path)
    if saved.added or saved.held_out:
        structlog.get_logger("dispatcher.service").warning(
            "servers_not_taken_over",
            path=str(path),
            added=len(saved.added),
            drained=len(saved.held_out),
            advice="with queue.url they are in the database: add and drain them again, then delete the file",
        )
    return JointMembers(clock, config.discovery.registration, config.api_key)


class JointMembers:
    """`api.members.Members` in the queue's database. Changes are there before they take effect.

    Args:
        registration: Who may register; None: nobody.
        default_api_key: For added servers without a key of their own.
    """

    def __init__(
        self, clock: Clock, registration: RegistrationSettings | None, default_api_key: SecretStr | None
    ) -> None:
        self._clock = clock
        self._registration = registration
        self._default_api_key = default_api_key
        self._lookup: Lookup | None = None
        self._membership: Membership | None = None
        self._store: SharedMembers | None = None
        self._seen = Seen(registration.ttl_s if registration else LOOKS * LOOK_S_MAX, clock.now())
        self._changing = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._locating = asyncio.Semaphore(LOOKUPS_MAX)
        self._bell = Bell(clock)
        self._log = structlog.get_logger("dispatcher.service")

    def sources(self) -> Sequence[Source]:
        """For `open_fleet`. They are empty until `kept_in`."""
        return Source(ADDED), Source(REGISTERED)

    def join(self, membership: Membership, lookup: Lookup | None) -> None:
        """Act on this from now on."""
        self._membership, self._lookup = membership, lookup

    @asynccontextmanager
    async def kept_in(self, queue: SqlQueue) -> AsyncIterator[None]:
        """Keep them here, and hear what other nodes change, while the context is open."""
        self._store = queue.members
        await self._look()
        self._take_over()
        queue.listeners.append(self._heard)
        following = asyncio.create_task(self._follow(), name="members")
        try:
            yield
        finally:
            queue.listeners.remove(self._heard)
            following.cancel()
            await asyncio.wait([following])

    def listed(self) -> Mapping[ServerId, Member]:
        """See api.members.Members."""
        return members_of(self._acting)

    async def add(self, entry: ServerEntry) -> Sequence[ServerId]:
        """See api.members.Members."""
        async with self._changing:
            await self._look()
            check_addition(self._acting, entry.urls, self._seen.urls(MemberKind.ADDED))
            added = [MemberRecord(url, MemberKind.ADDED, _entry_of(url, entry)) for url in entry.urls]
            await self._kept.put_all(added)
            await self._look()
            return [ServerId(url) for url in entry.urls]

    async def remove(self, server: ServerId) -> None:
        """See api.members.Members."""
        async with self._changing:
            await self._look()
            check_removal(self._acting, server)
            await self._kept.remove(MemberKind.ADDED, [server])
            await self._kept.remove(MemberKind.HELD_OUT, [server])
            await self._look()

    async def hold_out(self, server: ServerId, *, hold: bool) -> None:
        """See api.members.Members."""
        async with self._changing:
            await self._look()
            check_listed(self._acting, server)
            if hold:
                await self._kept.put(MemberRecord(server, MemberKind.HELD_OUT))
            else:
                await self._kept.remove(MemberKind.HELD_OUT, [server])
            await self._look()

    async def register(self, entry: ServerEntry, token: str) -> tuple[ServerId, float]:
        """See api.members.Members."""
        settings, lookup = self._registration, self._lookup
        if settings is None or lookup is None:
            raise MemberError(404, "servers cannot register here: discovery.registration is not set")
        async with self._locating:
            server = await locate(entry, settings.networks, lookup)
        record = MemberRecord(server.id, MemberKind.REGISTERED, _located(server), token)
        known = self._seen.knows(record)
        if not known and len(self._seen.urls(MemberKind.REGISTERED) - {server.id}) >= REGISTERED_MAX:
            raise RegistrationError(f"there are {REGISTERED_MAX} registered servers already")
        if not await self._kept.claim(record, settings.ttl_s):
            raise RegistrationError("another token's holder has registered this server")
        if not known:
            self._bell.ring()
        return server.id, settings.ttl_s

    async def deregister(self, server: ServerId, token: str) -> bool:
        """See api.members.Members."""
        removed = await self._kept.remove(MemberKind.REGISTERED, [server], token)
        if removed:
            self._seen.left(server)
            self._bell.ring()
            return True
        await self._look()
        if server in self._seen.urls(MemberKind.REGISTERED):
            raise RegistrationError("another token's holder has registered this server")
        return False

    @property
    def _acting(self) -> Membership:
        assert self._membership is not None, "join was not called"
        return self._membership

    @property
    def _kept(self) -> SharedMembers:
        assert self._store is not None, "kept_in was not called"
        return self._store

    # What other nodes change

    def _heard(self, news: News | None) -> None:
        if news is None or news.topic is Topic.MEMBERS:
            self._bell.ring()

    async def _follow(self) -> None:
        expired_at = self._clock.now()
        while True:
            await self._bell.wait(self._seen.look_s)
            try:
                await self._look()
                if self._clock.now() - expired_at >= EXPIRE_S:
                    expired_at = self._clock.now()
                    for url in await self._kept.expire():
                        self._log.info("registration_expired", server=url)
            except (QueueError, StorageError):  # the queue itself has said so
                pass
            except Exception as error:  # noqa: BLE001  # a task's boundary: the servers stay as they were
                self._log.error("members_not_seen", error=type(error).__name__, exc_info=error)
            await self._clock.sleep(PAUSE_S)

    async def _look(self) -> None:
        """Have the members here as they are there. No look undoes a later one: they come one at a time."""
        async with self._looking:
            if self._seen.saw(await self._kept.list(), self._clock.now()):
                self._take_over()

    def _take_over(self) -> None:
        self._acting.held_out = frozenset(map(ServerId, self._seen.urls(MemberKind.HELD_OUT)))
        added = self._readable(self._seen.of(MemberKind.ADDED))
        self._acting.put(ADDED, expand_servers(added, self._default_api_key))
        self._acting.put(REGISTERED, self._registered(self._seen.of(MemberKind.REGISTERED)))

    def _readable(self, records: Iterable[MemberRecord]) -> list[ServerEntry]:
        entries = []
        for record in records:
            try:
                entries.append(ServerEntry.model_validate({"url": record.url, **record.entry}))
            except ValidationError:  # its text may hold the key
                self._log.error("member_not_read", server=record.url, advice="remove it and add it again")
        return entries

    def _registered(self, records: Iterable[MemberRecord]) -> list[ServerSpec]:
        servers = []
        for record in records:
            try:
                servers.append(msgspec.convert({"id": record.url, **record.entry}, ServerSpec))
            except msgspec.ValidationError:  # as above
                self._log.error("member_not_read", server=record.url, advice="it registers again by itself")
        return servers


def _entry_of(url: str, entry: ServerEntry) -> dict[str, Any]:
    kept: dict[str, Any] = msgspec.structs.asdict(saved_server(url, entry))
    del kept["url"]
    return kept


def _located(server: ServerSpec) -> dict[str, Any]:
    kept: dict[str, Any] = msgspec.to_builtins(server)
    del kept["id"]
    return {**kept, "headers": [list(header) for header in server.headers]}  # as JSON gives them back
