"""What a simulated server has done, and what is wrong with it."""

from dataclasses import dataclass, field

from dispatcher.testing.simulation.scenario import FaultKind


@dataclass(slots=True)
class Work:
    """What a server's engines did, over all its lives."""

    generated: int = 0
    """Output tokens made."""
    delivered: int = 0
    """Output tokens of whole answers that were sent off."""
    deaths: int = 0
    down_s: float = 0.0
    """Virtual seconds without a process, since it first joined."""
    _down_since: float | None = None

    def went_down(self, now: float) -> None:
        """Its process ended."""
        if self._down_since is None:
            self._down_since = now

    def down_until(self, now: float) -> float:
        """Seconds without a process up to a time: one that has not come back yet counts."""
        return self.down_s + (0.0 if self._down_since is None else max(0.0, now - self._down_since))

    def came_up(self, now: float) -> None:
        """A new process began."""
        if self._down_since is not None:
            self.down_s += now - self._down_since
            self._down_since = None


@dataclass(slots=True)
class Manners:
    """What is wrong with a living server just now."""

    frozen: bool = False
    asleep: bool = False
    unreachable: bool = False
    full: bool = False
    health_s: float = 0.0
    metrics_s: float = 0.0
    resetting: float = 0.0
    """Share of the requests that end with a reset."""
    spoiling: dict[FaultKind, float] = field(default_factory=dict)
    """Share of the answers that are spoilt, by the way in which they are."""

    def slow_down(self, health_s: float) -> None:
        """Let `/health` take so long."""
        self.health_s = health_s

    def fill(self, *, full: bool) -> None:
        """Refuse whatever would have to wait, or no more."""
        self.full = full

    def reset_no_more(self) -> None:
        """End connections as they should be ended."""
        self.resetting = 0.0
