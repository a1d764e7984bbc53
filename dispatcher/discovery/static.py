"""A list of server entries, as the user wrote it, becomes a list of servers."""

from collections.abc import Iterator, Sequence

from pydantic import SecretStr

from dispatcher.config import ServerEntry
from dispatcher.discovery.ranges import expand_ranges
from dispatcher.discovery.urls import base_url
from dispatcher.errors import ConfigError, Fault
from dispatcher.model import ServerId, ServerSpec

SERVERS_MAX = 10_000
"""One list can name this many: above it, a range is more likely mistyped than meant."""


def expand_servers(
    entries: Sequence[ServerEntry],
    default_api_key: SecretStr | None = None,
    places: Sequence[str] | None = None,
) -> list[ServerSpec]:
    """Expand ranges, bring URLs into one spelling, and merge what is listed twice alike.

    Args:
        entries: As validated by the configuration.
        default_api_key: For entries with neither a key nor an Authorization header of their own.
        places: What to call each entry in a fault; by default `servers[0]`, `servers[1]`, ...

    Raises:
        ConfigError: With every entry that is no server, that is listed twice with different settings, or that
            brings the list above `SERVERS_MAX`.
    """
    listing = _Listing(default_api_key)
    for position, entry in enumerate(entries):
        listing.add(entry, places[position] if places else f"servers[{position}]")
    if listing.faults:
        raise ConfigError(tuple(listing.faults))
    return list(listing.servers.values())


class _Listing:
    """Servers by their identity, and the faults met on the way."""

    def __init__(self, default_api_key: SecretStr | None) -> None:
        self._default_api_key = default_api_key
        self._places: dict[ServerId, str] = {}
        self.servers: dict[ServerId, ServerSpec] = {}
        self.faults: list[Fault] = []

    def add(self, entry: ServerEntry, where: str) -> None:
        try:
            for server in self._expanded(entry):
                self._list(server, where)
        except ValueError as error:
            self.faults.append(Fault(where, str(error)))

    def _expanded(self, entry: ServerEntry) -> Iterator[ServerSpec]:
        headers = tuple((name, value.get_secret_value()) for name, value in entry.headers.items())
        has_own = any(name.lower() == "authorization" for name, _ in headers)
        key = entry.api_key or (None if has_own else self._default_api_key)
        secret = key.get_secret_value() if key else None
        for text in expand_ranges(entry.url, SERVERS_MAX):
            url = base_url(text)
            yield ServerSpec(ServerId(url), url, secret, headers, entry.limit)

    def _list(self, server: ServerSpec, where: str) -> None:
        listed = self.servers.setdefault(server.id, server)
        first = self._places.setdefault(server.id, where)
        if listed != server:
            raise ValueError(f"{server.id} is listed with other settings at {first}")
        if len(self.servers) > SERVERS_MAX:
            raise ValueError(f"brings the list above {SERVERS_MAX} servers")
