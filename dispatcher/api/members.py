"""What the routes need of the servers' membership: who is listed, by whom, and changes to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dispatcher.config import ServerEntry
from dispatcher.model import ServerId, ServerSpec


@dataclass(frozen=True, slots=True)
class Member:
    """A listed server."""

    server: ServerSpec
    source: str
    """`servers`, `file`, a DNS name, `added` or `registered`."""
    held_out: bool
    """Whether an operator has drained it."""


class MemberError(Exception):
    """A change that cannot be made. The text is shown to whoever asked for it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Members(Protocol):
    """The servers' membership. Changes raise MemberError; StorageError or QueueError if not kept."""

    def listed(self) -> Mapping[ServerId, Member]:
        """All listed servers."""

    async def add(self, entry: ServerEntry) -> Sequence[ServerId]:
        """Add the entry's servers, or change added ones. They stay over a restart."""

    async def remove(self, server: ServerId) -> None:
        """Take an added server away. Its open requests may end."""

    async def hold_out(self, server: ServerId, *, hold: bool) -> None:
        """Give a server nothing more, over restarts too; or give it work again."""

    async def register(self, entry: ServerEntry, token: str) -> tuple[ServerId, float]:
        """Register a server or renew that: who it is now, and for how many seconds.

        `token` is the name of the token that was shown. Raises RegistrationError, too.
        """

    async def deregister(self, server: ServerId, token: str) -> bool:
        """End a server's registration; whether there was one. Raises RegistrationError, too."""
