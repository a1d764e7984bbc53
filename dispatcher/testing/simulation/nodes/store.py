"""The store that several nodes share, and each node's connection to it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dispatcher.errors import MissingError, TakenError
from dispatcher.ports import Incoming, Stored
from dispatcher.storage.patience import Patience
from dispatcher.testing.simulation.nodes.scenario import Moment
from dispatcher.testing.simulation.nodes.wire import Wire

WAY_S = (0.005, 0.05)
"""How long a request takes to the store, and its answer back, at least and at most."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Object:
    content: bytes
    version: str
    changed_at: float


class Objects:
    """What a store holds: plain state, with the conditional writes of an object store."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._objects: dict[str, _Object] = {}
        self._written = 0

    def put(self, key: str, content: bytes, replaces: str | None = None) -> str:
        """Write the whole if its version is the one that is replaced. Raises TakenError."""
        found = self._objects.get(key)
        if (found.version if found else None) != replaces:
            raise TakenError(f"{key}: cannot be written: another has written there")
        self._written += 1
        self._objects[key] = _Object(content, str(self._written), self._wall())
        return str(self._written)

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """A part of it. Raises MissingError."""
        if key not in self._objects:
            raise MissingError(f"{key}: there is no such object")
        content = self._objects[key].content
        return content[start:] if length is None else content[start : start + length]

    def find(self, key: str) -> Stored | None:
        """What is there."""
        found = self._objects.get(key)
        if found is None:
            return None
        return Stored(key, len(found.content), found.changed_at, found.version)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove these."""
        for key in keys:
            self._objects.pop(key, None)

    def list(self, folder: str) -> list[Stored]:
        """All below a folder."""
        found = (self.find(key) for key in sorted(self._objects) if key.startswith(f"{folder}/"))
        return [stored for stored in found if stored is not None]


class StoreLink:
    """`ports.Store` of one node, at the end of a wire. What fails is sent again as with a real store."""

    def __init__(self, objects: Objects, wire: Wire, patience: Patience) -> None:
        self._objects = objects
        self._wire = wire
        self._patience = patience

    @property
    def obstacle(self) -> str | None:
        """See Store."""
        return self._patience.obstacle

    def path(self, key: str) -> Path | None:  # noqa: ARG002  # the port's
        """See Store."""
        return None

    async def check(self) -> None:
        """Find out whether it can be written."""
        await self.delete(["files/writable"])

    @asynccontextmanager
    async def receive(self, key: str, bytes_max: int | None = None) -> AsyncIterator[Incoming]:  # noqa: ARG002  # the port's
        """See Store."""
        yield _Receiving(self, key)

    async def put(self, key: str, content: bytes, replaces: str | None = None) -> str:
        """See Store."""
        await self._wire.reach(Moment.PUTTING)
        return await self._ask(lambda: self._objects.put(key, content, replaces), Moment.PUT)

    async def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """See Store."""
        return await self._ask(lambda: self._objects.read(key, start, length))

    async def find(self, key: str) -> Stored | None:
        """See Store."""
        return await self._ask(lambda: self._objects.find(key))

    async def delete(self, keys: Sequence[str]) -> None:
        """See Store."""
        await self._ask(lambda: self._objects.delete(keys))

    async def list(self, folder: str) -> AsyncIterator[Stored]:
        """See Store."""
        for stored in await self._ask(lambda: self._objects.list(folder)):
            yield stored

    async def keep(self, key: str, content: bytes) -> None:
        """Write a stream, in place of what may be there."""

        def write() -> None:
            self._objects.delete([key])
            self._objects.put(key, content)

        await self._ask(write)

    async def _ask(self, work: Callable[[], T], after: Moment | None = None) -> T:
        return await self._patience.keep_trying(lambda: self._wire.ask(work, after))


class _Receiving:
    """`ports.Incoming` that holds its bytes until they are kept."""

    def __init__(self, link: StoreLink, key: str) -> None:
        self._link = link
        self._key = key
        self._content = bytearray()

    async def write(self, piece: bytes) -> None:
        await asyncio.sleep(0)  # or whoever writes without end could never be cancelled
        self._content += piece

    async def keep(self) -> None:
        await self._link.keep(self._key, bytes(self._content))
