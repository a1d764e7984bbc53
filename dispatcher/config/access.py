"""Who may use the service: named keys, and what lets servers register themselves."""

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from dispatcher.config.values import Count, Name, Seconds, Settings

KEYS_MAX = 1000
"""Every key is compared with each request's; so many cost 0.2 ms."""
NETWORKS_MAX = 100
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class KeyLimits(Settings):
    """What the holder of one key may have at a time. None: no limit."""

    open_jobs: Annotated[Count, Field(ge=0)] | None = None
    """Jobs that have not ended."""
    queued_rows: Annotated[Count, Field(ge=0)] | None = None
    """Rows without an outcome, over all open jobs."""
    live_per_minute: Annotated[Count, Field(ge=1, le=10_000_000)] | None = None
    """Live requests, at an even pace; a minute's worth may come at once."""


class Hashed(Settings):
    """A secret by its name and its hash. `dispatcher key NAME` makes both."""

    name: Name
    hash: str

    @field_validator("name")
    @classmethod
    def _is_plain(cls, name: str) -> str:
        """It stands in logs, and owns jobs."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", name):
            raise ValueError("must be up to 64 letters, digits, dots, dashes, underscores and @")
        return name

    @field_validator("hash")
    @classmethod
    def _is_a_hash(cls, text: str) -> str:
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", text):
            raise ValueError("must be sha256: and 64 hex digits, as `dispatcher key NAME` prints it")
        return text

    @property
    def digest(self) -> bytes:
        """The hash itself."""
        return bytes.fromhex(self.hash.removeprefix("sha256:"))


class KeyEntry(Hashed):
    """One API key."""

    role: Literal["user", "admin"] = "user"
    """A user sees and changes their own jobs; an admin all of them, and the servers."""
    limits: KeyLimits = KeyLimits()


def _network(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return ipaddress.ip_network(value.strip())
    except ValueError:
        raise ValueError("must be a network such as 10.0.0.0/8, or an address") from None


def decoded(value: object) -> object:
    """JSON, where a variable of the environment gives a list or a mapping."""
    if not (isinstance(value, str) and value.lstrip()[:1] in {"[", "{"}):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError("must be valid JSON") from None


Secret = TypeVar("Secret", bound=Hashed)


def _distinct(secrets: tuple[Secret, ...]) -> tuple[Secret, ...]:
    if repeated := _repeated(secret.name for secret in secrets):
        raise ValueError(f"must have each name once: {repeated}")
    if _repeated(secret.hash for secret in secrets):
        raise ValueError("must have each hash once")
    return secrets


def _repeated(texts: Iterable[str]) -> str | None:
    return next((text for text, count in Counter(texts).items() if count > 1), None)


KeyList = Annotated[
    tuple[KeyEntry, ...], BeforeValidator(decoded), Field(max_length=KEYS_MAX), AfterValidator(_distinct)
]
TokenList = Annotated[tuple[Hashed, ...], Field(min_length=1, max_length=KEYS_MAX), AfterValidator(_distinct)]


class RegistrationSettings(Settings):
    """Servers that register themselves with `dispatcher serve`, and leave by silence."""

    tokens: TokenList
    """What they show. `dispatcher key NAME --for-servers` makes one."""
    networks: Annotated[
        tuple[Annotated[Network, BeforeValidator(_network)], ...],
        Field(max_length=NETWORKS_MAX),
    ] = ()
    """Where their addresses must lie: nowhere, unless it is said. Loopback, link-local, metadata and
    translated addresses count only in networks that hold nothing else."""
    ttl_s: Annotated[Seconds, Field(ge=3, le=3600)] = 30.0
    """How long a registration lasts without being renewed; it is renewed every third of that."""


Registration = Annotated[RegistrationSettings, BeforeValidator(decoded)]
