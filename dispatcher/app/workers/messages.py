"""What a run and its workers tell each other."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dispatcher.app.snapshot import Snapshot
from dispatcher.telemetry.sums import Series

# From the parent.


class Order(msgspec.Struct, frozen=True, tag=True):
    """What a worker is to do: the first message."""

    number: int
    """Which worker it is, from 0."""
    of: int
    """How many there are."""
    node: str
    """The name that its leases are held under."""
    config: Mapping[str, Any]
    input: str
    """What the user calls the input."""
    source: str | None
    """The plain file of requests; None where they are made of a staged table."""
    settings: Mapping[str, Any]
    """Those that the job's answers depend on."""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Send nothing more, and end when what is in flight has ended."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Close what is open, record what is answered, and end."""


class AskSeries(msgspec.Struct, frozen=True, tag=True):
    """Tell the metrics."""


class Elsewhere(msgspec.Struct, frozen=True, tag=True):
    """At which servers the other workers have requests that may end servers."""

    suspects_at: Sequence[str]


class Hungry(msgspec.Struct, frozen=True, tag=True):
    """So many of the other workers have nothing left to send."""

    others: int


# From a worker.


class Report(msgspec.Struct, frozen=True, tag=True):
    """How a worker stands. Its snapshot has no rows, and only what this worker has seen."""

    snapshot: Snapshot
    hungry: bool = False
    """Whether it could send more than it has, and the queue has no more."""


class TellSeries(msgspec.Struct, frozen=True, tag=True):
    """Every sample of its metrics, by family."""

    series: Series


class SuspectsAt(msgspec.Struct, frozen=True, tag=True):
    """At which servers it has requests that may end servers: told whenever that changes."""

    servers: Sequence[str]


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The last message of a worker that ends in order."""

    nothing_left: bool
    """Whether the queue is drained; otherwise it was told to end."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The last message of a worker that cannot go on, and that another one could not either."""

    kind: str
    """The name of the error's class."""
    message: str


FromParent = Order | Drain | Stop | AskSeries | Elsewhere | Hungry
FromWorker = Report | TellSeries | SuspectsAt | Ended | Failed
