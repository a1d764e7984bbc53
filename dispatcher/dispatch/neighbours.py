"""Other processes that send to the same servers: whose turn it is there to try a suspect.

Were two processes to try a suspect each at one server, its death would speak against both. So they take turns
at each server, by a clock that all of them see, and a turn is not used while another's suspect is there.
"""

import zlib
from collections.abc import Container, Iterable

from dispatcher.model import ServerId
from dispatcher.pool.limits import ALL, Portion

TURN_S = 2.0
NEWS_S = 0.25
"""From the beginning of a turn: what the one before has begun is known after that."""
MEMORY_S = 10.0
"""So long after suspects of two processes were at a server its death proves nothing: later, what ended there
was not its death (`casualties.FATE_S`)."""


class Neighbours:
    """What is known of the others' suspects. Plain state; times are monotonic seconds of this machine."""

    def __init__(self) -> None:
        self.portion: Portion = ALL
        """Which process this is, of how many."""
        self._theirs: frozenset[ServerId] = frozenset()
        self._met_at: dict[ServerId, float] = {}

    def admit(self, server: ServerId, now: float) -> bool:
        """Whether a suspect of ours may begin at this server now."""
        if self.portion.of == 1:
            return True
        turn, passed_s = divmod(now, TURN_S)
        ours = (int(turn) + zlib.crc32(server.encode())) % self.portion.of == self.portion.number
        return ours and passed_s >= NEWS_S and server not in self._theirs

    def heard(self, theirs: Iterable[ServerId], ours: Container[ServerId], now: float) -> None:
        """The others have suspects at these servers, and we at `ours`."""
        self._theirs = frozenset(theirs)
        self.look(ours, now)

    def look(self, ours: Container[ServerId], now: float) -> None:
        """Note where suspects of two processes are at one server: the news came late."""
        self._met_at = {server: at for server, at in self._met_at.items() if now - at < MEMORY_S}
        self._met_at.update({server: now for server in self._theirs if server in ours})

    def met(self, server: ServerId, now: float) -> bool:
        """Whether this server's death may be the doing of another process's suspect."""
        return now - self._met_at.get(server, -MEMORY_S) < MEMORY_S
