"""How fast requests end, so that enough of them are in hand."""

LOOK_S = 1.0
AHEAD_S = 2.0
"""Work kept in hand, in seconds at the present pace: while the next shards are leased, which takes a
transaction on a disk that may be busy, no server may run dry."""


class Pace:
    """Counts outcomes, and says once a second how many two seconds take. Monotonic seconds."""

    __slots__ = ("_ended", "_since", "ahead")

    def __init__(self, now: float) -> None:
        self.ahead = 0
        """How many requests end in two seconds, by the last whole look; 0 before there was one."""
        self._since = now
        self._ended = 0

    def ended(self) -> None:
        """A request has its outcome: one that was refused comes back at once, and needs no other in hand."""
        self._ended += 1

    def look(self, now: float) -> None:
        """Take stock, once a second at most."""
        seconds = now - self._since
        if seconds >= LOOK_S:
            self.ahead = int(self._ended / seconds * AHEAD_S)
            self._since, self._ended = now, 0
