"""How many requests this process may have open at all, whatever the servers would take."""

REGROWTH_S = 10.0
"""After a fault of this machine the ceiling grows back by a tenth every ten seconds."""
SHRINK = 0.8
LIVE_WEIGHT = 2
"""A live request has two descriptors: its client's connection, and the one to its server."""


class Ceiling:
    """A bound on open requests: the process's descriptors, less when this machine ran out of something."""

    __slots__ = ("_changed_at", "_most", "open", "value")

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed_at = float("-inf")
        self.open = 0
        """What jobs and live requests have open, counted by their desks."""
        self.value = most

    @property
    def is_reached(self) -> bool:
        """Whether nothing more may be opened."""
        return self.open >= self.value

    def local_fault(self, now: float) -> None:
        """This machine could not open one more: stay below what is open. One cut a second at most."""
        if now - self._changed_at < 1.0:
            return
        self.value = max(1, int(min(self.value, self.open) * SHRINK))
        self._changed_at = now

    def tick(self, now: float) -> None:
        """Grow back, slowly."""
        if self.value < self._most and now - self._changed_at >= REGROWTH_S:
            self.value = min(self._most, self.value + max(1, self.value // 10))
            self._changed_at = now
