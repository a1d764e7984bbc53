"""How much a node holds in hand: requests before they are sent, and outcomes before they are durable."""

from collections.abc import Collection

from dispatcher.dispatch.backlog import Backlog
from dispatcher.dispatch.pace import Pace
from dispatcher.model import Outcome

WINDOW_FACTOR = 2
"""Requests kept in hand, ready or in flight, as a multiple of the servers' permits.

More where requests end so fast that `Pace` asks for it."""
WINDOW_MIN = 512
WINDOW_BYTES_MAX = 256 * 2**20
"""Bodies that wait to be sent; past this nothing more is leased while anything is ready."""
UNRECORDED_MAX = 16_384
UNRECORDED_BYTES_MAX = 256 * 2**20
"""Outcomes on their way to the disk; past either nothing is sent: it could not be recorded."""


class Window:
    """How many requests to hold. Plain state, no clock."""

    def __init__(self, now: float) -> None:
        self.pace = Pace(now)
        self.size = WINDOW_MIN
        """How many requests are to be in hand, ready or in flight."""

    def look(self, permits: int, now: float) -> None:
        """Fit the window to the servers' permits and to the pace."""
        self.pace.look(now)
        self.size = max(WINDOW_MIN, WINDOW_FACTOR * permits, self.pace.ahead)

    def room(self, backlog: Backlog, under_way: int) -> int:
        """How many more requests to lease now; 0 while the window is well filled."""
        held = len(backlog) + under_way
        full = backlog.body_bytes >= WINDOW_BYTES_MAX or held > self.size * 3 // 4
        return 0 if full else self.size - held


class Unrecorded:
    """The outcomes on their way to the disk."""

    def __init__(self) -> None:
        self.count = 0
        self.body_bytes = 0

    def appended(self, outcome: Outcome) -> None:
        """An outcome was handed to the recorder."""
        self.count += 1
        self.body_bytes += len(outcome.body or b"")

    def recorded(self, outcomes: Collection[Outcome]) -> None:
        """These are on their way no more."""
        self.count -= len(outcomes)
        self.body_bytes -= sum(len(outcome.body or b"") for outcome in outcomes)

    @property
    def too_many(self) -> bool:
        """Whether recording is so far behind that nothing more may be sent."""
        return self.count >= UNRECORDED_MAX or self.body_bytes >= UNRECORDED_BYTES_MAX
