"""Servers that come and go while the service runs: added by an admin, registered by themselves, held out."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from pydantic import SecretStr, ValidationError

from dispatcher.api.members import Member, MemberError
from dispatcher.app.sources import Listed, Membership, Source
from dispatcher.config import Config, RegistrationSettings, ServerEntry
from dispatcher.discovery.registration import Lookup, Registrations, locate
from dispatcher.discovery.static import expand_servers
from dispatcher.errors import StateError
from dispatcher.model import ServerId, ServerSpec
from dispatcher.ports import Clock
from dispatcher.queue.sql import SqlQueue
from dispatcher.storage.filesystem import atomic_write, storage_errors

ADDED, REGISTERED = "added", "registered"
ADDED_MAX = 10_000
LOOKUPS_MAX = 16
"""Names looked up at a time: each takes a thread, for as long as name servers are silent."""
PRIVATE = 0o600
"""The file holds the added servers' keys."""


class SavedServer(msgspec.Struct, frozen=True):
    """An added server, as the file has it."""

    url: str
    api_key: str | None = None
    headers: dict[str, str] = {}
    limit: int | None = None


class Saved(msgspec.Struct, frozen=True):
    """What survives a restart."""

    added: tuple[SavedServer, ...] = ()
    held_out: tuple[str, ...] = ()


def read_saved(path: Path) -> Saved:
    """What an earlier life of the service saved; nothing where it saved nothing.

    Raises StateError for a file that is not ours, StorageError for one that cannot be read.
    """
    with storage_errors(path, "cannot be read"):
        try:
            return msgspec.json.decode(path.read_bytes(), type=Saved)
        except FileNotFoundError:
            return Saved()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise StateError(
                f"{path} is not a list of added servers; move it away to start without"
            ) from error


@asynccontextmanager
async def open_lookup(config: Config) -> AsyncIterator[Lookup | None]:
    """What looks up the names of servers that register; None where nobody may."""
    if config.discovery.registration is None:
        yield None
        return
    from dispatcher.discovery.resolver import SystemResolver  # noqa: PLC0415  # 0.1 s that only names cost

    async with SystemResolver() as resolver:
        yield resolver


def load_members(config: Config, path: Path, clock: Clock) -> "Members":
    """The members that are not configured, as they were saved at `path`. Raises as `read_saved` does."""
    return Members(read_saved(path), path, clock, config.discovery.registration, config.api_key)


class Members:
    """`api.members.Members`. Changes are durable before they take effect, and are made one at a time.

    Args:
        saved: What `read_saved` gave.
        path: Where changes are saved.
        registration: Who may register; None: nobody.
        default_api_key: For added servers without a key of their own.
    """

    def __init__(
        self,
        saved: Saved,
        path: Path,
        clock: Clock,
        registration: RegistrationSettings | None,
        default_api_key: SecretStr | None,
    ) -> None:
        self._saved = saved
        self._path = path
        self._clock = clock
        self._registration = registration
        self._registrations = Registrations(registration.ttl_s if registration else 0.0)
        self._default_api_key = default_api_key
        self._lookup: Lookup | None = None
        self._membership: Membership | None = None
        self._changing = asyncio.Lock()
        self._locating = asyncio.Semaphore(LOOKUPS_MAX)

    def sources(self) -> Sequence[Source]:
        """For `open_fleet`."""
        watched = self._registrations if self._registration else None
        return Source(ADDED, self._added(self._saved)), Source(REGISTERED, watched=watched)

    def join(self, membership: Membership, lookup: Lookup | None) -> None:
        """Act on this from now on."""
        self._membership, self._lookup = membership, lookup
        membership.held_out = frozenset(map(ServerId, self._saved.held_out))
        membership.announce()

    @asynccontextmanager
    async def kept_in(self, _queue: SqlQueue) -> AsyncIterator[None]:
        """While the context is open they are kept: in the file, whichever queue there is."""
        yield

    def listed(self) -> Mapping[ServerId, Member]:
        """See api.members.Members."""
        return members_of(self._acting)

    async def add(self, entry: ServerEntry) -> Sequence[ServerId]:
        """See api.members.Members."""
        async with self._changing:
            new = {url: saved_server(url, entry) for url in entry.urls}
            check_addition(self._acting, new, [each.url for each in self._saved.added])
            kept = {each.url: each for each in self._saved.added} | new
            await self._save(msgspec.structs.replace(self._saved, added=tuple(kept.values())))
            self._acting.put(ADDED, self._added(self._saved))
            return [ServerId(url) for url in new]

    async def remove(self, server: ServerId) -> None:
        """See api.members.Members."""
        async with self._changing:
            check_removal(self._acting, server)
            added = tuple(each for each in self._saved.added if each.url != server)
            held_out = tuple(each for each in self._saved.held_out if each != server)
            await self._save(Saved(added, held_out))
            self._acting.held_out = frozenset(map(ServerId, held_out))
            self._acting.put(ADDED, self._added(self._saved))

    async def hold_out(self, server: ServerId, *, hold: bool) -> None:
        """See api.members.Members."""
        async with self._changing:
            check_listed(self._acting, server)
            kept = [each for each in self._saved.held_out if each != server]
            held_out = (*kept, server) if hold else tuple(kept)
            await self._save(msgspec.structs.replace(self._saved, held_out=held_out))
            self._acting.held_out = frozenset(map(ServerId, held_out))
            self._acting.announce()

    async def register(self, entry: ServerEntry, token: str) -> tuple[ServerId, float]:
        """See api.members.Members."""
        settings, lookup = self._registration, self._lookup
        if settings is None or lookup is None:
            raise MemberError(404, "servers cannot register here: discovery.registration is not set")
        async with self._locating:
            server = await locate(entry, settings.networks, lookup)
        if self._registrations.renew(server, token, self._clock.now()):
            self._acting.put(REGISTERED, self._registrations.servers())
        return server.id, settings.ttl_s

    async def deregister(self, server: ServerId, token: str) -> bool:
        """See api.members.Members."""
        removed = self._registrations.remove(server, token)
        if removed:
            self._acting.put(REGISTERED, self._registrations.servers())
        return removed

    @property
    def _acting(self) -> Membership:
        assert self._membership is not None, "join was not called"
        return self._membership

    async def _save(self, saved: Saved) -> None:
        """Save, and only then believe it."""
        content = msgspec.json.format(msgspec.json.encode(saved), indent=2) + b"\n"
        writing = asyncio.ensure_future(asyncio.to_thread(atomic_write, self._path, content, PRIVATE))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:  # its client left: the next change must not be written beside it
            await writing
            raise
        self._saved = saved

    def _added(self, saved: Saved) -> list[ServerSpec]:
        return expand_servers((self._entry(each) for each in saved.added), self._default_api_key)

    def _entry(self, saved: SavedServer) -> ServerEntry:
        try:
            return ServerEntry.model_validate(msgspec.structs.asdict(saved))
        except ValidationError:
            raise StateError(f"{self._path} holds a server that cannot be one: {saved.url}") from None


def members_of(membership: Membership) -> dict[ServerId, Member]:
    """All listed servers."""
    return {
        server: Member(each.server, each.source, held_out=server in membership.held_out)
        for server, each in membership.listed().items()
    }


def check_addition(membership: Membership, new: Collection[str], added: Collection[str]) -> None:
    """Raises MemberError where these cannot be added to those that are."""
    listed = membership.listed()
    for url in new:
        known = listed.get(ServerId(url))
        if known is not None and known.source not in {ADDED, REGISTERED}:
            raise MemberError(409, f"{url} is in the list of {known.source} already")
    if len({*added, *new}) > ADDED_MAX:
        raise MemberError(409, f"there are {len(added)} added servers; at most {ADDED_MAX}")


def check_removal(membership: Membership, server: ServerId) -> None:
    """Raises MemberError where there is no such server, or nobody added it."""
    listed = check_listed(membership, server)
    if listed.source != ADDED:
        where = f"is in the list of {listed.source}"
        raise MemberError(409, f"{server} {where}: drain it, or take it out there")


def check_listed(membership: Membership, server: ServerId) -> Listed:
    """The server. Raises MemberError where there is none."""
    listed = membership.listed().get(server)
    if listed is None:
        raise MemberError(404, f"there is no server {server}")
    return listed


def saved_server(url: str, entry: ServerEntry) -> SavedServer:
    """An entry's server as it is kept, with its secrets."""
    key = entry.api_key.get_secret_value() if entry.api_key else None
    headers = {name: value.get_secret_value() for name, value in entry.headers.items()}
    return SavedServer(url, key, headers, entry.limit)
