"""Servers behind Kubernetes Services: the API server lists them, and then tells what changes."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Protocol

from pydantic import SecretStr

from dispatcher.config import KubernetesEntry
from dispatcher.config.urls import base_url
from dispatcher.discovery.slices import Address, Change, EndpointSlice, Slices
from dispatcher.discovery.static import server_at
from dispatcher.model import ServerSpec
from dispatcher.ports import Clock
from dispatcher.telemetry.logging import get_logger

LIST_EVERY_S: Final = 300.0
"""After so long everything is asked for anew, whatever a watch has told: events can be lost on the way."""
PAUSE_S_MAX: Final = 60.0
"""Between two tries."""
BROKEN_MAX: Final = 3
"""Watches that break off in a row, before they have told anything, and are no fault yet."""
SERVERS_MAX: Final = 10_000
"""As many as one list can name."""


class KubernetesError(Exception):
    """The API server cannot be asked, or refuses. The text says why, in the same words each time."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WatchEndedError(Exception):
    """A watch broke off, or cannot go on from its version (410): everything is to be asked for anew.

    That is daily life: API servers restart, proxies close what is idle, and histories are short.
    """


@dataclass(frozen=True, slots=True)
class Listed:
    """All slices, as of one version."""

    slices: Sequence[EndpointSlice]
    version: str


class Session(Protocol):
    """An API server, and a namespace there. Everything takes a bounded time."""

    @property
    def namespace(self) -> str:
        """The entry's, or the one that the credentials are for."""

    async def list_all(self, selector: str) -> Listed:
        """Every EndpointSlice that the selector matches. Raises KubernetesError and WatchEndedError."""

    def watch(self, selector: str, version: str) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """What changes after this version, until the API server ends it in order.

        Entering raises KubernetesError where it is refused; both that and the rest raise WatchEndedError.
        """

    async def lacks_namespace(self) -> bool:
        """Whether there is no such namespace. False where that may not be asked, too."""


class Api(Protocol):
    """Where sessions come from."""

    def connect(self) -> AbstractAsyncContextManager[Session]:
        """A session with the credentials as they are now. Raises KubernetesError where there are none."""


class EndpointSlices:
    """The servers of one entry of the configuration.

    The last list stays in force while the API server is not reached or refuses. What it says holds: a
    Service that is scaled to nothing has no servers.

    Args:
        entry: Which Services, and what their servers have in common.
        api: Whom to ask.
        default_api_key: For servers of an entry without a key of its own.
        random: Jitters retries, so that not everybody comes back at once to an API server that restarts.
    """

    def __init__(
        self, entry: KubernetesEntry, api: Api, default_api_key: SecretStr | None, random: Random
    ) -> None:
        self._entry = entry
        self._api = api
        self._default_api_key = default_api_key
        self._random = random
        self._slices = Slices(entry.port)
        self._servers: list[ServerSpec] = []
        self._known: dict[Address, ServerSpec] = {}
        self._unusable: str | None = None
        self._failures = 0
        self._broken = 0
        self._problem: str | None = None
        self._log = get_logger("discovery")

    @property
    def problem(self) -> str | None:
        """Why the list may be old, or not whole; or None."""
        return self._problem

    async def watch(self, clock: Clock, interval_s: float = 5.0) -> AsyncGenerator[list[ServerSpec], None]:
        """Yield the whole list whenever it has changed.

        Watches follow each other with `interval_s` between their starts, at least. What fails is tried
        again after a fifth of that, doubling up to a minute.
        """
        while True:
            at_least_s = 0.0
            try:
                async with aclosing(self._follow(clock, interval_s)) as lists:
                    async for servers in lists:
                        yield servers
            except KubernetesError as error:
                at_least_s = min(error.retry_after_s, PAUSE_S_MAX)
                self._failures += 1
                self._complain(str(error))
            except WatchEndedError as error:
                self._failures += 1
                self._break(str(error))
            await clock.sleep(max(at_least_s, self._pause_s(interval_s / 5)))

    async def _follow(self, clock: Clock, interval_s: float) -> AsyncGenerator[list[ServerSpec], None]:
        """Ask for everything, and watch until it is time to ask again."""
        selector = self._entry.label_selector
        async with self._api.connect() as session:
            listed = await session.list_all(selector)
            absence = None if listed.slices else await self._absence(session)
            self._slices.replace(listed.slices, listed.version)
            self._known.clear()  # the namespace may be another, where a kubeconfig was changed
            if self._refresh(session.namespace):
                yield list(self._servers)
            until = clock.now() + LIST_EVERY_S
            while (began := clock.now()) < until:
                async with session.watch(selector, self._slices.version) as changes:
                    if self._broken < BROKEN_MAX:
                        self._complain(self._unusable if len(self._slices) else absence)
                    async for change in changes:
                        self._failures = self._broken = 0
                        self._slices.apply(change)
                        if self._refresh(session.namespace):
                            yield list(self._servers)
                        self._complain(self._unusable if len(self._slices) else absence)
                self._failures = self._broken = 0
                await clock.sleep(max(0.0, began + interval_s - clock.now()))

    async def _absence(self, session: Session) -> str:
        if await session.lacks_namespace():
            return f"there is no namespace {session.namespace}"
        service = f"Service {self._entry.service}" if self._entry.service else "Service with such labels"
        where = f"in namespace {session.namespace}"
        return f"no EndpointSlice {where} matches {self._entry.label_selector}: is there a {service}?"

    def _refresh(self, namespace: str) -> bool:
        """Whether the servers are others than before."""
        listing = self._slices.listing()
        self._unusable = listing.problem
        self._known = dict(self._usable(listing.addresses, namespace))
        servers = list(self._known.values())[:SERVERS_MAX]
        if len(self._known) > SERVERS_MAX:
            self._unusable = f"has more than {SERVERS_MAX} servers: the others are left out"
        if servers == self._servers:
            return False
        self._servers = servers
        self._log.info("kubernetes_changed", source=str(self._entry), servers=len(servers))
        return True

    def _usable(self, addresses: Sequence[Address], namespace: str) -> Iterator[tuple[Address, ServerSpec]]:
        for address in addresses:
            if (known := self._known.get(address)) is not None:
                yield address, known
                continue
            host = f"[{address.host}]" if address.kind == "IPv6" else address.host
            try:
                url = base_url(f"{self._entry.scheme}://{host}:{address.port}")
            except ValueError:
                self._unusable = "has an address that is none"
                continue
            server = server_at(url, self._entry, self._default_api_key)
            yield address, replace(server, host_name=self._host_name(address, namespace))

    def _host_name(self, address: Address, namespace: str) -> str | None:
        """In clusters, certificates are for the Service's name (cert-manager, OpenShift)."""
        named = self._entry.scheme == "https" and address.kind != "FQDN" and address.service
        return self._entry.host_name or (f"{address.service}.{namespace}.svc" if named else None)

    def _pause_s(self, first_s: float) -> float:
        most_s = min(PAUSE_S_MAX, first_s * 2 ** min(max(self._failures - 1, 0), 16))
        return self._random.uniform(most_s / 2, most_s)

    def _break(self, reason: str) -> None:
        """Now and then is daily life. Again and again, what changes is seen late."""
        self._broken += 1
        self._log.debug("kubernetes_watch_ended", source=str(self._entry), reason=reason)
        if self._broken >= BROKEN_MAX:
            self._complain(f"breaks off every watch: {reason}")

    def _complain(self, problem: str | None) -> None:
        if problem is not None and problem != self._problem:
            kept = len(self._servers)
            self._log.warning("kubernetes_faulty", source=str(self._entry), problem=problem, servers=kept)
        self._problem = problem
