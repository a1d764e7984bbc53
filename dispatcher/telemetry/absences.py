"""When this process stood still: what a blocked or stopped event loop looks like from inside.

A stopped process (SIGSTOP, swapping, a cgroup without CPU time) wakes up to find that all its timers have run
out at once. What it then takes for a server's silence was its own.
"""

from collections import deque
from collections.abc import Callable

BEAT_S = 0.25
LATE_S = 0.5
"""A beat that is later than this was an absence. Below it, a loop is busy, which harms no timeout of a second
or more."""
BACK_S = 0.5
"""For so long after an absence, what runs out may have run out in it: its answer may lie unread in the socket
until the loop has worked off what had piled up."""
KEPT_MAX = 64
"""Absences that are remembered; older ones cannot matter to anything that is still going on."""


class Absences:
    """The times in which nothing here ran. Whoever asks need not wait for the beat that will notice.

    Without beats there is none. Times are monotonic seconds, of the clock that is given.
    """

    __slots__ = ("_beaten_at", "_now", "_spans")

    def __init__(self, clock_now: Callable[[], float]) -> None:
        self._now = clock_now
        self._beaten_at: float | None = None
        self._spans: deque[tuple[float, float]] = deque(maxlen=KEPT_MAX)

    def beat(self) -> float:
        """Show that the loop runs, every `BEAT_S`. Returns the seconds of an absence that ends here, or 0."""
        now = self._now()
        span = self._unnoticed(now)
        if span is not None:
            self._spans.append(span)
        self._beaten_at = now
        return 0.0 if span is None else span[1] - span[0]

    def seconds_since(self, then: float) -> float:
        """How much of the time from then to now this process stood still; up to a beat more than it was."""
        return sum(max(0.0, end - max(start, then)) for start, end in self._all(self._now()))

    def just_over(self) -> bool:
        """Whether an absence has ended so shortly ago that a time-out may have been its doing."""
        now = self._now()
        return any(now - end < BACK_S for _, end in self._all(now)[-1:])

    def _all(self, now: float) -> list[tuple[float, float]]:
        span = self._unnoticed(now)
        return [*self._spans] if span is None else [*self._spans, span]

    def _unnoticed(self, now: float) -> tuple[float, float] | None:
        """The absence that no beat has told of yet."""
        since = self._beaten_at
        return None if since is None or now - since < BEAT_S + LATE_S else (since, now)
