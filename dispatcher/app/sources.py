"""Where servers are found, as configured, and what all of these places list together."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Protocol

from dispatcher.app.extras import require_kubernetes
from dispatcher.config import Config
from dispatcher.discovery.dns import Resolver, names_of
from dispatcher.discovery.file import ServersFile
from dispatcher.discovery.kubernetes import EndpointSlices, KubernetesError
from dispatcher.discovery.static import expand_servers
from dispatcher.errors import ConfigError, Fault
from dispatcher.model import ServerId, ServerSpec
from dispatcher.ports import Clock

LOOK_EVERY_S = 5.0
"""Between two looks at a source."""


class Watched(Protocol):
    """A list that changes."""

    @property
    def problem(self) -> str | None:
        """Why the list may be old or not whole, or None. Asked from any thread."""

    def watch(self, clock: Clock, interval_s: float) -> AsyncGenerator[list[ServerSpec], None]:
        """Look every so often, for ever, and yield the whole list whenever it has changed."""


@dataclass(frozen=True, slots=True)
class Source:
    """One place that lists servers."""

    name: str
    servers: Sequence[ServerSpec] = ()
    """Its list at the start."""
    watched: Watched | None = None
    """None: the list stays as it is."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A server, and the source that it is listed by: the first of those that do."""

    server: ServerSpec
    source: str


class Membership:
    """The servers of all sources together. One that two of them list is one server, as the first has it."""

    def __init__(self, sources: Sequence[Source], tell: Callable[[Sequence[ServerSpec]], None]) -> None:
        self._lists = {source.name: source.servers for source in sources}
        self._tell = tell
        self.held_out: AbstractSet[ServerId] = frozenset()
        """Listed servers that are to get nothing, for as long as an operator wants."""

    def listed(self) -> Mapping[ServerId, Listed]:
        """Every listed server, held out or not."""
        servers: dict[ServerId, Listed] = {}
        for name, listed in self._lists.items():
            for server in listed:
                servers.setdefault(server.id, Listed(server, name))
        return servers

    def announce(self) -> None:
        """Tell who they are."""
        listed = self.listed().values()
        self._tell([each.server for each in listed if each.server.id not in self.held_out])

    def put(self, source: str, servers: Sequence[ServerSpec]) -> None:
        """Make this a source's list, and announce it."""
        self._lists[source] = servers
        self.announce()

    async def follow(self, source: Source, clock: Clock) -> None:
        """Announce each change of a source. What it lists no more may still be another's."""
        if source.watched is not None:
            async for servers in source.watched.watch(clock, LOOK_EVERY_S):
                self.put(source.name, servers)


@asynccontextmanager
async def open_sources(
    config: Config, resolver: Resolver | None = None, changing: Sequence[Source] = ()
) -> AsyncIterator[Sequence[Source]]:
    """Every configured source. Names are looked up only once they are followed: they may not exist yet.

    `resolver` takes the place of the system's. With sources that are `changing` while the process runs there
    need be no other. Raises ConfigError, as `check_sources` does.
    """
    sources = _read_sources(config) if changing else check_sources(config)
    async with AsyncExitStack() as stack:
        if config.discovery.dns:
            if resolver is None:
                resolver = await stack.enter_async_context(_system_resolver())
            names = names_of(config.discovery.dns, resolver, config.api_key)
            sources += [Source(str(each.name), watched=each) for each in names]
        yield [*sources, *changing]


def has_sources(config: Config) -> bool:
    """Whether there is any place that lists servers."""
    discovery = config.discovery
    return any((config.servers, discovery.file, discovery.dns, discovery.kubernetes))


def check_sources(config: Config) -> list[Source]:
    """The sources that can be read at once.

    Raises ConfigError where there is no source at all, or the servers file cannot be read.
    """
    if not has_sources(config):
        options = "--server URL, --servers-file PATH, --servers-dns NAME or discovery.kubernetes"
        raise ConfigError((Fault("servers", f"must name at least one: {options}"),))
    return _read_sources(config)


def _read_sources(config: Config) -> list[Source]:
    discovery = config.discovery
    sources = [Source("servers", expand_servers(config.servers, config.api_key))]
    if discovery.file is not None:
        file = ServersFile(discovery.file, config.api_key)
        sources.append(Source("file", file.read(), file))
    if discovery.kubernetes is not None:
        sources += _kubernetes_sources(config)
    return sources


def _kubernetes_sources(config: Config) -> Iterator[Source]:
    require_kubernetes()
    from dispatcher.discovery.kubernetes_api import KubernetesApi  # noqa: PLC0415  # an extra

    for number, entry in enumerate(config.discovery.kubernetes or ()):
        api = KubernetesApi(entry, os.environ)
        try:
            api.check()
        except KubernetesError as error:
            raise ConfigError((Fault(f"discovery.kubernetes[{number}]", str(error)),)) from error
        random = Random()  # noqa: S311  # it jitters retries
        yield Source(str(entry), watched=EndpointSlices(entry, api, config.api_key, random))


@asynccontextmanager
async def _system_resolver() -> AsyncIterator[Resolver]:
    from dispatcher.discovery.resolver import SystemResolver  # noqa: PLC0415  # 0.1 s that only names cost

    async with SystemResolver() as resolver:
        yield resolver
