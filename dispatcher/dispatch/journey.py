"""Where one live request has been, and whether it may be sent once more. Nothing here awaits."""

from typing import Final

from dispatcher.model import Break, BreakKind, Ending, ErrorCode, Judgement, ServerId, Verdict

TRIES_MAX: Final = 3
"""Servers that answer one live request, or fail it: its client is waiting."""
SENDS_MAX: Final = 2 * TRIES_MAX
"""Sends that ended on a stale connection are no tries, but end, too."""
LOST_MAX: Final = 2
"""Servers that may be lost to one live request, which may be what ends them: it is not sent to a third."""
UNREACHED: Final = (
    BreakKind.REFUSED,
    BreakKind.UNRESOLVED,
    BreakKind.TLS,
    BreakKind.CONNECT_TIMED_OUT,
)
"""The request never went out."""
INTERNAL_ERROR: Final = 500


class Journey:
    """The sends of one live request."""

    __slots__ = ("_lost", "_sends", "tried")

    def __init__(self) -> None:
        self.tried: tuple[ServerId, ...] = ()
        """Servers it was sent to, in order, but for those whose connection was stale."""
        self._lost: frozenset[ServerId] = frozenset()
        self._sends = 0

    @property
    def is_perilous(self) -> bool:
        """Whether so many servers may have been ended by it that nobody should send it again."""
        return len(self._lost) >= LOST_MAX

    def ended(self, server: ServerId, verdict: Verdict, *, lost: bool) -> None:
        """One send of it ended; `lost` where the server may have been ended by it."""
        self._sends += 1
        if verdict is not Verdict.STALE_CONNECTION:
            self.tried = (*self.tried, server)
        if lost:
            self._lost |= {server}

    def goes_on(self) -> bool:
        """Whether another server may be tried."""
        return not self.is_perilous and len(self.tried) < TRIES_MAX and self._sends < SENDS_MAX


def may_be_fatal(ending: Ending, judgement: Judgement) -> bool:
    """Whether a server that had the request, and ended so, may have been ended by it.

    Not only a connection that broke: a gateway turns that into an answer of its own, a plain 500 may be an
    engine's last word, and the connection of a server that dies at once can pass for a stale one.
    """
    match judgement.verdict:
        case Verdict.SERVER_FAULT | Verdict.DOUBTFUL | Verdict.STALLED:
            return not (isinstance(ending, Break) and ending.kind in UNREACHED)
        case Verdict.STALE_CONNECTION:
            return True
        case _:
            return False


def may_be_the_servers(ending: Ending, judgement: Judgement) -> bool:
    """A doubtful ending that another server may spare the client: a plain 5xx, an answer that broke off."""
    if isinstance(ending, Break):
        return True
    return ending.status >= INTERNAL_ERROR and judgement.code is not ErrorCode.TIMEOUT
