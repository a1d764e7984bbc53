"""The truth about one simulation, kept beside the dispatcher: what was sent, answered and made durable.

A breach of a promise is noted the moment it happens, with its time. The log of events is hashed, so that two
runs of one seed can be compared whole.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dispatcher.model import Answer, Break, BreakKind, Ending, ServerId
from dispatcher.testing.simulation.rows import Row
from dispatcher.testing.simulation.servers import SimulatedServer

EVENTS_KEPT = 60
BREACHES_MAX = 20
WAITING = "waiting_for_servers"


@dataclass(slots=True)
class RowRecord:
    """What one row met with, over all dispatchers."""

    sends: int = 0
    answers: int = 0
    """Whole answers with status 200, good or not."""
    rejected: int = 0
    """Answers with status 400."""
    refusals: int = 0
    """Other answers."""
    timeouts: int = 0
    """Attempts that the request's own deadline ended."""
    breaks: int = 0
    """Endings without an answer, and attempts that the dispatcher closed."""


@dataclass(slots=True)
class Ledger:
    """Events, breaches, and every row's record."""

    now: Callable[[], float]
    breaches: list[str] = field(default_factory=list)
    latest: deque[str] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    events: int = 0
    rows: dict[int, RowRecord] = field(default_factory=dict)
    written: dict[int, str] = field(default_factory=dict)
    """Which dispatcher wrote a row's outcome."""
    durable: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Rows whose outcome is safe: which dispatcher wrote it, and since when."""
    counts: Counter[str] = field(default_factory=Counter)
    """Events by kind."""
    on_event: Callable[[], None] = lambda: None
    """Called after each event: the dispatcher may die of it."""
    _last_kind: str = ""
    _hash: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    @property
    def digest(self) -> str:
        """A hash of all events with their times."""
        return self._hash.hexdigest()

    def note(self, kind: str, *details: object) -> None:
        """Something happened."""
        line = f"{self.now():.6f} {kind} {' '.join(map(str, details))}"
        self._hash.update(line.encode())
        if kind == self._last_kind == WAITING:  # said every ten seconds: the latest will do
            self.latest.pop()
        self._last_kind = kind
        self.latest.append(line)
        self.counts[kind] += 1
        self.events += 1
        self.on_event()

    def breach(self, promise: str) -> None:
        """A promise was broken."""
        if len(self.breaches) < BREACHES_MAX:
            self.breaches.append(f"at {self.now():.3f} s: {promise}")

    def require(self, kept: bool, promise: str) -> None:  # noqa: FBT001  # a condition, read as one
        """Note a breach unless the promise was kept."""
        if not kept:
            self.breach(promise)

    def row(self, index: int) -> RowRecord:
        """The record of one row."""
        return self.rows.setdefault(index, RowRecord())


class NodeWitness:
    """`world.Witness` of one dispatcher: writes into the ledger, and holds it to what is said of sending."""

    def __init__(
        self,
        name: str,
        ledger: Ledger,
        *,
        knows_finished: Callable[[int], bool] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self.name = name
        self.opened_at: dict[int, float] = {}
        """When this dispatcher read the journal of a shard, by the shard's rows."""
        self.open: Counter[ServerId] = Counter()
        """Its own requests in flight."""
        self.canaries: dict[ServerId, float] = {}
        """When each server last passed a canary of this dispatcher's."""
        self.answers: dict[ServerId, float] = {}
        """When each server last answered a request of this dispatcher's."""
        self._ledger = ledger
        self._knows_finished = knows_finished or self._read_or_wrote
        self._now = now or ledger.now

    def sent(self, server: SimulatedServer, row: Row) -> None:
        """See Witness."""
        self.open[server.id] += 1
        self._ledger.row(row.index).sends += 1
        self._ledger.require(
            not self._knows_finished(row.index), f"row {row.index} was sent although durable"
        )
        self._ledger.note("sent", self.name, server.id, row.index)

    def ended(self, server: SimulatedServer, row: Row, ending: Ending | None) -> None:
        """See Witness."""
        self.open[server.id] -= 1
        record = self._ledger.row(row.index)
        match ending:
            case Answer(status=200):
                record.answers += 1
                self.answers[server.id] = self._now()
            case Answer(status=400):
                record.rejected += 1
            case Answer():
                record.refusals += 1
            case Break(kind=BreakKind.TIMED_OUT):
                record.timeouts += 1
            case _:
                record.breaks += 1
        self._ledger.note("ended", self.name, server.id, row.index, _short(ending))

    def canary_passed(self, server: ServerId) -> None:
        """See Witness."""
        self.canaries[server] = self._now()
        self._ledger.note("canary", self.name, server)

    def opened(self, indexes: range) -> None:
        """This dispatcher reads a shard's journal now."""
        self.opened_at.update(dict.fromkeys(indexes, self._ledger.now()))

    def _read_or_wrote(self, index: int) -> bool:
        """Whether this dispatcher made the outcome durable itself, or could read so in the journal."""
        by, at = self._ledger.durable.get(index, ("", 0.0))
        return by == self.name or (by != "" and at < self.opened_at.get(index, 0.0))


def _short(ending: Ending | None) -> str:
    if ending is None:
        return "closed"
    return str(ending.status) if isinstance(ending, Answer) else ending.kind.value
