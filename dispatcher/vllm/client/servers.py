"""Which server the client's next request goes to."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pydantic import TypeAdapter, ValidationError

from dispatcher.config import ServerList
from dispatcher.errors import ConfigError, Fault
from dispatcher.model import ServerId, ServerSpec, Verdict

ASIDE_S_MIN: Final = 1.0
ASIDE_S_MAX: Final = 60.0
"""How long a server that has failed is passed over while another is there: doubled with each failure in a
row, as the pool's readmission is."""


class Servers(Protocol):
    """Gives the client a server for each send. A pool can stand behind it."""

    def listed(self) -> Sequence[ServerSpec]:
        """All servers there are just now."""

    async def take(self, avoid: Collection[ServerId]) -> ServerSpec:
        """The server for the next send: none of `avoid`, if there is another. Each is to be given back."""

    def give_back(self, server: ServerSpec, verdict: Verdict | None) -> None:
        """A send has ended, with this verdict; None where it was given up."""


@dataclass(slots=True)
class _Standing:
    outstanding: int = 0
    taken: int = 0
    failures: int = 0
    """In a row."""
    aside_until: float = 0.0


class LeastOutstanding:
    """A fixed list of servers, of which the one with the fewest requests outstanding is taken.

    A dead server has none outstanding and would be taken every time, so one that has failed is passed over
    for a while; where all have, they are taken nevertheless.
    """

    def __init__(self, servers: Sequence[ServerSpec], now: Callable[[], float] = time.monotonic) -> None:
        self._servers = servers
        self._now = now
        self._standings = {server.id: _Standing() for server in servers}

    def listed(self) -> Sequence[ServerSpec]:
        """The servers in the order in which they were given."""
        return self._servers

    async def take(self, avoid: Collection[ServerId]) -> ServerSpec:
        """Count a request on the server that has the fewest; of equals, on the one that had fewer so far."""
        now = self._now()

        def rank(server: ServerSpec) -> tuple[bool, bool, int, int]:
            standing = self._standings[server.id]
            aside = standing.aside_until > now
            return server.id in avoid, aside, standing.outstanding, standing.taken

        server = min(self._servers, key=rank)
        standing = self._standings[server.id]
        standing.outstanding += 1
        standing.taken += 1
        return server

    def give_back(self, server: ServerSpec, verdict: Verdict | None) -> None:
        """Count it off; put the server aside where it was at fault."""
        standing = self._standings[server.id]
        standing.outstanding -= 1
        if verdict is Verdict.SUCCESS:
            standing.failures, standing.aside_until = 0, 0.0
        elif verdict in _FAULTS:
            pause_s = min(ASIDE_S_MIN * 2 ** min(standing.failures, 10), ASIDE_S_MAX)
            standing.failures += 1
            standing.aside_until = self._now() + pause_s


_FAULTS: Final = frozenset({Verdict.SERVER_FAULT, Verdict.MISMATCH, Verdict.STALLED})
_LIST: Final[TypeAdapter[ServerList]] = TypeAdapter(ServerList)


def servers_of(
    base_url: str | Sequence[str] | Servers, api_key: str | None, headers: Mapping[str, str]
) -> Servers:
    """The client's servers, of whatever it was given. Raises ConfigError."""
    if isinstance(base_url, str | Sequence):
        return LeastOutstanding(parse_servers(base_url, api_key, headers))
    if api_key is not None or headers:
        raise ConfigError((Fault("base_url", "has servers with keys and headers of their own"),))
    return base_url


def parse_servers(
    urls: str | Sequence[str], api_key: str | None, headers: Mapping[str, str]
) -> list[ServerSpec]:
    """Servers by their base URLs, with or without `/v1`; `http://gpu[02-16]:8000` is a range of them.

    Raises ConfigError with every fault; keys and headers are not repeated in it.
    """
    listed = [urls] if isinstance(urls, str) else list(urls)
    try:
        entries = _LIST.validate_python(
            [{"url": url, "api_key": api_key, "headers": dict(headers)} for url in listed]
        )
    except ValidationError as error:
        raise ConfigError(tuple(_fault(detail["loc"], detail["msg"]) for detail in error.errors())) from None
    found = {url: entry for entry in entries for url in entry.urls}
    if not found:
        raise ConfigError((Fault("base_url", "must name at least one server"),))
    plain = tuple(headers.items())
    key = None if api_key is None else api_key.strip()
    return [ServerSpec(ServerId(url), url, key, plain) for url in found]


def _fault(place: tuple[int | str, ...], message: str) -> Fault:
    """The place within one server's entry: which argument it was."""
    position, *field = place or (0,)
    named = str(field[0]) if field else "url"
    where = f"base_url[{position}]" if named == "url" else named
    return Fault(where, message.removeprefix("Value error, "))
