"""Servers that register themselves: where they may be, and how long they are believed to be there."""

import ipaddress
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import urlsplit

from dispatcher.config import ServerEntry
from dispatcher.discovery.dns import NameLookupError
from dispatcher.discovery.static import server_at
from dispatcher.model import ServerId, ServerSpec
from dispatcher.ports import Clock
from dispatcher.telemetry.logging import get_logger

REGISTERED_MAX = 10_000
"""As many as one list can name."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SPECIAL: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("0.0.0.0/8", "127.0.0.0/8", "::/128", "::1/128"),  # this machine (RFC 6890)
        *("169.254.0.0/16", "fe80::/10"),  # link-local: most clouds' metadata (RFC 3927, RFC 4291)
        *(
            "169.254.169.254/32",
            "169.254.170.2/32",
            "fd00:ec2::254/128",
            "fd20:ce::254/128",
        ),  # AWS, GCP, Azure
        *("100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),  # metadata: Alibaba, Azure, Oracle
        *("224.0.0.0/4", "240.0.0.0/4", "ff00::/8"),  # multicast, reserved, broadcast
        *(
            "64:ff9b::/96",
            "64:ff9b:1::/48",
            "2002::/16",
            "2001::/32",
        ),  # IPv4 in disguise: NAT64, 6to4, Teredo
    )
)
"""Addresses that a wide network does not include: whoever means them says so, by a network within."""


class RegistrationError(Exception):
    """A server cannot be registered. The text says why, to whoever asked for it."""


class ForbiddenAddressError(RegistrationError):
    """It is not where servers may be."""


class Lookup(Protocol):
    """Looks up the addresses of hosts. Raises NameLookupError."""

    async def addresses(self, host: str) -> Collection[str]:
        """The addresses of a host, IPv4 and IPv6."""


def is_allowed(address: str, networks: Sequence[Network]) -> bool:
    """Whether a server may be at this address."""
    actual = _unmapped(ipaddress.ip_address(address))
    special = [network for network in SPECIAL if actual in network]
    return any(
        actual in network and all(_is_within(network, reserved) for reserved in special)
        for network in networks
    )


async def locate(entry: ServerEntry, networks: Sequence[Network], lookup: Lookup) -> ServerSpec:
    """The server of an entry, at an address that was checked: its name is never looked up again.

    It gets the key that it registered with, or none: a key of the fleet's is not shown to whoever registers.

    Raises RegistrationError: the entry is a range, its name has no address, or none where it may be.
    """
    if len(entry.urls) != 1:
        raise RegistrationError("a server registers itself only: the url must be one")
    server = server_at(entry.urls[0], entry, None)
    host = urlsplit(server.base_url).hostname or ""
    allowed = [address for address in await _addresses(host, lookup) if is_allowed(address, networks)]
    if not allowed:
        get_logger("discovery").warning("registration_forbidden", server=server.id)
        raise ForbiddenAddressError("the url has no address within discovery.registration.networks")
    if _is_literal(host):
        return server
    chosen = min(allowed, key=lambda address: (":" in address, address))  # the same one each time
    return replace(server, base_url=_at(server.base_url, chosen), host_name=host.removesuffix("."))


async def _addresses(host: str, lookup: Lookup) -> Collection[str]:
    if _is_literal(host):
        return [host]
    try:
        found = await lookup.addresses(host)
    except NameLookupError as error:
        raise RegistrationError("the url's host has no address") from error
    return [address for address in found if "%" not in address]  # a zone is this machine's own


def _at(url: str, address: str) -> str:
    parts = urlsplit(url)
    port = "" if parts.port is None else f":{parts.port}"
    host = f"[{address}]" if ":" in address else address
    return f"{parts.scheme}://{host}{port}{parts.path}"


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _unmapped(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_within(inner: Network, outer: Network) -> bool:
    if isinstance(inner, ipaddress.IPv4Network) and isinstance(outer, ipaddress.IPv4Network):
        return inner.subnet_of(outer)
    if isinstance(inner, ipaddress.IPv6Network) and isinstance(outer, ipaddress.IPv6Network):
        return inner.subnet_of(outer)
    return False


@dataclass(slots=True)
class _Registration:
    server: ServerSpec
    token: str
    until: float


class Registrations:
    """Who is registered, by which token, and until when. Times are monotonic seconds."""

    def __init__(self, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self._known: dict[ServerId, _Registration] = {}
        self._looked_at: float | None = None

    def servers(self) -> list[ServerSpec]:
        """All of them, the oldest first."""
        return [each.server for each in self._known.values()]

    def renew(self, server: ServerSpec, token: str, now: float) -> bool:
        """Register, or go on being registered. Whether the list has changed.

        Raises RegistrationError: another token's holder registered it, or there are too many.
        """
        known = self._known.get(server.id)
        if known is None:
            if len(self._known) >= REGISTERED_MAX:
                raise RegistrationError(f"there are {REGISTERED_MAX} registered servers already")
            self._known[server.id] = _Registration(server, token, now + self.ttl_s)
            return True
        self._check_holder(known, token)
        changed, known.server = known.server != server, server
        known.until = now + self.ttl_s
        return changed

    def remove(self, server: ServerId, token: str) -> bool:
        """End a registration; whether there was one. Raises RegistrationError for another token's."""
        known = self._known.get(server)
        if known is None:
            return False
        self._check_holder(known, token)
        del self._known[server]
        return True

    def expire(self, now: float, gap_s_max: float) -> bool:
        """Forget who has been silent for too long; whether there was any.

        After a gap of more than `gap_s_max` since the last call this process stood still, and heard nobody:
        everyone is given the gap back.
        """
        gap_s = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        if gap_s > gap_s_max:
            for each in self._known.values():
                each.until += gap_s
        silent = [server for server, each in self._known.items() if each.until < now]
        for server in silent:
            del self._known[server]
            get_logger("discovery").info("registration_expired", server=server, ttl_s=self.ttl_s)
        return bool(silent)

    @property
    def problem(self) -> None:
        """None: what is heard is all that there is to know."""
        return None

    async def watch(self, clock: Clock, interval_s: float) -> AsyncGenerator[list[ServerSpec], None]:
        """Yield the whole list whenever somebody has been silent for too long."""
        while True:
            await clock.sleep(interval_s)
            if self.expire(clock.now(), 2 * interval_s):
                yield self.servers()

    def _check_holder(self, known: _Registration, token: str) -> None:
        if known.token != token:
            raise RegistrationError("another token's holder has registered this server")
