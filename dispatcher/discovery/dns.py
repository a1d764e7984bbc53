"""Names whose DNS records are servers, looked up again and again while a job runs."""

from collections.abc import AsyncGenerator, Collection
from dataclasses import replace
from typing import Protocol

from pydantic import SecretStr

from dispatcher.config import DnsEntry, DnsName, parse_dns_name
from dispatcher.discovery.static import server_at
from dispatcher.model import ServerSpec
from dispatcher.ports import Clock
from dispatcher.telemetry.logging import get_logger


class NameLookupError(Exception):
    """A lookup failed, or found nothing of use. The text says why, in the same words each time."""


class Resolver(Protocol):
    """What answers questions about names, within a bounded time. Both raise NameLookupError."""

    async def addresses(self, host: str) -> Collection[str]:
        """The addresses of a host, IPv4 and IPv6."""

    async def services(self, name: str) -> Collection[tuple[str, int]]:
        """Target and port of each of a name's SRV records, whatever their priority and weight."""


class ServersName:
    """The servers that one name stands for: at each of its addresses, or at each target of its SRV records.

    The last good list stays in force until there is another: a lookup that fails, a name that does not exist
    and one without records take no server away. (Servers that are really gone are found by probing them.)
    A name with both IPv4 and IPv6 addresses stands for the IPv4 ones: a dual-stack server has one of each.
    """

    def __init__(
        self, name: DnsName, entry: DnsEntry, resolver: Resolver, default_api_key: SecretStr | None = None
    ) -> None:
        self.name = name
        self._entry = entry
        self._resolver = resolver
        self._default_api_key = default_api_key
        self._servers: list[ServerSpec] = []
        self._complaint: str | None = None
        self._log = get_logger("discovery")

    @property
    def problem(self) -> str | None:
        """Why the last list stays in force, or is not whole; or None."""
        return self._complaint

    async def watch(self, clock: Clock, interval_s: float = 5.0) -> AsyncGenerator[list[ServerSpec], None]:
        """Look at once, then every so often; yield the whole list whenever it has changed."""
        while True:
            if await self._refresh():
                yield list(self._servers)
            await clock.sleep(interval_s)

    async def _refresh(self) -> bool:
        try:
            servers = await self._look()
        except NameLookupError as error:
            self._complain(str(error))
            return False
        if servers == self._servers:
            return False
        self._servers = servers
        self._log.info("dns_name_changed", name=str(self.name), servers=len(servers))
        return True

    async def _look(self) -> list[ServerSpec]:
        urls = [self._url(*record) for record in await self._records()]
        usable = {url for url in urls if url is not None}
        if not usable:
            raise NameLookupError("none of its records has a host and a port")
        unusable = urls.count(None)
        self._complain(f"{unusable} of its records have no host or no port" if unusable else None)
        return [self._server(url) for url in sorted(usable)]  # answers come in any order

    async def _records(self) -> Collection[tuple[str, int | None]]:
        if self.name.srv:
            return await self._resolver.services(self.name.host)
        addresses = await self._resolver.addresses(self.name.host)
        chosen = [address for address in addresses if ":" not in address] or addresses
        return [(address, self.name.port) for address in chosen]

    def _url(self, host: str, port: int | None) -> str | None:
        """None for port 0, which Consul gives a service without one, and for the root, which means "none"."""
        try:
            return self.name.url(host, port)
        except ValueError:
            return None

    def _server(self, url: str) -> ServerSpec:
        server = server_at(url, self._entry, self._default_api_key)
        return server if self.name.srv else replace(server, host_name=self.name.host.removesuffix("."))

    def _complain(self, complaint: str | None) -> None:
        if complaint is not None and complaint != self._complaint:
            kept = len(self._servers)
            self._log.warning("dns_name_faulty", name=str(self.name), problem=complaint, servers=kept)
        self._complaint = complaint


def names_of(
    entries: Collection[DnsEntry], resolver: Resolver, default_api_key: SecretStr | None = None
) -> list[ServersName]:
    """Every name that the entries stand for, once each, in order."""
    listed: dict[str, DnsEntry] = {}
    for entry in entries:
        for url in entry.urls:
            listed.setdefault(url, entry)
    return [
        ServersName(parse_dns_name(url), entry, resolver, default_api_key) for url, entry in listed.items()
    ]
