"""Lists of servers: by their URLs, and by names whose DNS records are the servers."""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails

from dispatcher.config.names import parse_dns_name
from dispatcher.config.ranges import expand_ranges
from dispatcher.config.urls import base_url
from dispatcher.config.values import ApiKey, Count, Header, Name, Settings

LIMIT_MAX = 65_536
"""More permits than a process has ports towards one server, so more can only be a slip."""
SERVERS_MAX = 10_000
"""One list can name this many: above it, a range is more likely mistyped than meant."""
NAMES_MAX = 100
"""DNS names that are looked up again and again; each can stand for any number of servers."""
_FRAMING_HEADERS = frozenset({"connection", "content-length", "content-type", "transfer-encoding"})


class ServerOptions(Settings):
    """What the servers of one entry have in common, wherever they are found."""

    api_key: ApiKey | None = None
    """None: the top level's `api_key` is used."""
    headers: dict[str, Header] = Field(default={}, max_length=100)
    limit: Annotated[Count, Field(ge=1, le=LIMIT_MAX)] | None = None
    """A fixed number of permits for each server of the entry. None: `pool.limit` decides."""

    @field_validator("headers")
    @classmethod
    def _are_plain(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        if not all(re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII) for name in headers):
            raise ValueError("must be named with letters, digits and dashes")
        if len({name.lower() for name in headers}) < len(headers):
            raise ValueError("must name each header once: upper and lower case are the same")
        for name in headers:
            if name.lower() in _FRAMING_HEADERS:
                raise ValueError(f"must leave {name} to the dispatcher")
        return headers

    @model_validator(mode="after")
    def _authorize_once(self) -> Self:
        if self.api_key and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("must have either api_key or an Authorization header, not both")
        return self


class ServerEntry(ServerOptions):
    """One line of a server list: a URL, or a range of them, and what they have in common.

    A plain string stands for an entry with that URL alone. `dispatcher.discovery.static` expands entries.
    """

    url: Name

    @property
    def urls(self) -> Sequence[str]:
        """What it stands for, each in one spelling."""
        return self._expanded(self.url)

    @classmethod
    def _expanded(cls, url: str) -> Sequence[str]:
        return [base_url(text) for text in expand_ranges(url, SERVERS_MAX)]

    def agrees_with(self, other: "ServerEntry") -> bool:
        """Whether the two say the same of a server that both list."""
        return self is other or self.model_copy(update={"url": other.url}) == other

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"url": value.strip()} if isinstance(value, str) else value

    @field_validator("url")
    @classmethod
    def _can_be_used(cls, url: str) -> str:
        """A URL names its server in logs and metrics, so it can carry no credentials."""
        if "@" in url:
            raise ValueError("must not hold a user or password: set api_key or headers instead")
        if "?" in url or "#" in url:
            raise ValueError("must not hold a query or fragment: give the base URL")
        cls._expanded(url)
        return url


class DnsEntry(ServerEntry):
    """A name whose DNS records are servers, and what these have in common.

    The `url` has the name as its host: `http://vllm.example:8000` is a server at each of its addresses, and
    `srv+http://_http._tcp.vllm.example` one at each target of its SRV records.
    """

    @classmethod
    def _expanded(cls, url: str) -> Sequence[str]:
        return [str(parse_dns_name(text)) for text in expand_ranges(url, NAMES_MAX)]


Entry = TypeVar("Entry", bound=ServerEntry)


def _listed(value: object) -> object:
    """Servers in one text: a JSON list, or URLs parted by commas or spaces outside of brackets."""
    if not isinstance(value, str):
        return value
    if not re.match(r'\[\s*["{\]]', value):
        return re.findall(r"(?:\[[^\]]*\]|[^\s,])+", value)
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError("must be a list of URLs, or valid JSON") from None  # the text may hold keys


def _agreed(entries: tuple[Entry, ...], most: int) -> tuple[Entry, ...]:
    """Refuse what is listed twice with different settings, and a list that stands for too much."""
    listed: dict[str, Entry] = {}
    faults = []
    for position, entry in enumerate(entries):
        disputed = [url for url in entry.urls if not listed.setdefault(url, entry).agrees_with(entry)]
        if disputed:
            faults.append(_fault(position, f"lists {disputed[0]} again with other settings"))
        elif len(listed) > most:
            faults.append(_fault(position, f"brings the list above {most} entries"))
    if faults:
        raise ValidationError.from_exception_data("list", faults)
    return entries


def _fault(position: int, message: str) -> InitErrorDetails:
    error = ValueError(message)
    return InitErrorDetails(type="value_error", loc=(position,), input=None, ctx={"error": error})


ServerList = Annotated[
    tuple[ServerEntry, ...],
    BeforeValidator(_listed),
    Field(max_length=SERVERS_MAX),
    AfterValidator(lambda entries: _agreed(entries, SERVERS_MAX)),
]
DnsList = Annotated[
    tuple[DnsEntry, ...],
    BeforeValidator(_listed),
    Field(max_length=NAMES_MAX),
    AfterValidator(lambda entries: _agreed(entries, NAMES_MAX)),
]
