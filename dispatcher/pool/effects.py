"""What the pool is told of attempts, and what it wants done."""

from dataclasses import dataclass
from enum import StrEnum, auto

from dispatcher.model import Judgement
from dispatcher.pool.server import Server


class Loss(StrEnum):
    """How a server was lost, as far as its open requests may have been the cause."""

    DEAD = auto()  # nobody listens, its engine is dead, or it was restarted
    HUNG = auto()  # no progress by any sign, and no canary
    OTHER = auto()  # nothing that a request could have done


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Close this server's open requests now; they are resent elsewhere."""

    server: Server
    reason: str
    loss: Loss = Loss.OTHER
    silent: bool = False
    """Whether the server is well, and makes nothing for the one request that is open: it may be its fault."""
    after_s: float = 0.0
    """Wait so long: they may be about to break, and how they do tells what has ended the server."""


@dataclass(frozen=True, slots=True)
class Spared:
    """This suspect lives after all: what broke there was a connection."""

    server: Server


@dataclass(frozen=True, slots=True)
class Look:
    """The time of this server's next check has changed: plan it anew."""

    server: Server


Effect = GiveUp | Spared | Look


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """What a server is told of one attempt."""

    judgement: Judgement
    sent_at: float
    model: str | None
    repeated: bool = False
    """Whether the same request was doubtful on another server before: then the server is not to blame."""
