"""Keys and what they permit. Deciding only: no request, no I/O."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TypeVar

from dispatcher.config import Hashed, KeyEntry, KeyLimits

MINUTE_S = 60.0
ROUNDING_S = 1e-6
Found = TypeVar("Found")


class Role(StrEnum):
    """What a key's holder may do."""

    USER = auto()  # their own jobs, live requests, and seeing the fleet
    ADMIN = auto()  # everything


@dataclass(frozen=True, slots=True)
class Principal:
    """Whom a request comes from."""

    name: str
    role: Role
    limits: KeyLimits


LOCAL = Principal("local", Role.ADMIN, KeyLimits())
"""Whoever reaches a service without keys, which listens on this machine only."""


def digest_of(secret: str) -> bytes:
    """SHA-256. Keys hold 256 random bits: there is nothing to guess, and so no need of a slow hash."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()


class Keyring:
    """The configured keys."""

    def __init__(self, keys: Sequence[KeyEntry]) -> None:
        self._principals = [(key.digest, Principal(key.name, Role(key.role), key.limits)) for key in keys]
        self._meters = {
            key.name: Meter(key.limits.live_per_minute)
            for key in keys
            if key.limits.live_per_minute is not None
        }

    @property
    def is_empty(self) -> bool:
        """Whether there are no keys at all, so that everybody is LOCAL."""
        return not self._principals

    def holder(self, secret: str) -> Principal | None:
        """Whose key this is; None where it is nobody's."""
        return match_secret(secret, self._principals)

    def live_delay_s(self, principal: Principal, now: float) -> float:
        """Count one live request: 0 where it may go on, else in how many seconds one may."""
        meter = self._meters.get(principal.name)
        return 0.0 if meter is None else meter.take(now)


class Tokens:
    """The names of secrets, by their hashes."""

    def __init__(self, tokens: Sequence[Hashed]) -> None:
        self._names = [(token.digest, token.name) for token in tokens]

    def name_of(self, secret: str) -> str | None:
        """The name of this secret; None where it has none."""
        return match_secret(secret, self._names)


def match_secret(secret: str, known: Iterable[tuple[bytes, Found]]) -> Found | None:
    """What belongs to a secret. It takes as long whichever it is, and whether it is one at all."""
    digest, found = digest_of(secret), None
    for candidate, owner in known:
        if hmac.compare_digest(candidate, digest):
            found = owner
    return found


class Meter:
    """So many a minute at an even pace, and up to a minute's worth at once after quiet."""

    def __init__(self, per_minute: int) -> None:
        self._interval_s = MINUTE_S / per_minute
        self._due = float("-inf")
        """When the next one would come, had all before it kept the pace."""

    def take(self, now: float) -> float:
        """Count one: 0, or the seconds until there is room for one, which is then not counted."""
        due = max(self._due, now - MINUTE_S + self._interval_s)
        if due > now + ROUNDING_S:
            return due - now
        self._due = due + self._interval_s
        return 0.0
