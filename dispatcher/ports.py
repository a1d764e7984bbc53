"""What the deciding layers need from the world. Each port belongs to its consumer and is kept narrow."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dispatcher.config import KnownAnswer
from dispatcher.model import (
    CanaryReport,
    Ending,
    Grudge,
    JobId,
    Judgement,
    Lease,
    NodeId,
    Outcome,
    ProbeReport,
    QueueDepth,
    Request,
    ServerId,
    ServerSpec,
    Tally,
    Telemetry,
)


class Clock(Protocol):
    """Time, so that tests and the simulator can own it."""

    def now(self) -> float:
        """Monotonic seconds."""

    def wall(self) -> float:
        """Seconds since the epoch."""

    async def sleep(self, seconds: float) -> None:
        """Sleep that long; 0 lets others run."""


class Queue(Protocol):
    """The shared work queue, as a node sees it."""

    async def lease(self, node: NodeId, want: int, without: Collection[JobId] = ()) -> Sequence[Lease]:
        """Take shards that hold about `want` requests; fewer, or none, where the queue has no more.

        None of the jobs `without`: the node has enough of them.
        """

    async def renew(self, node: NodeId, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Prolong these leases; return those that were lost to another node."""

    async def settle(self, node: NodeId, lease: Lease, tally: Tally) -> None:
        """Mark a shard as finished. Raises LeaseLostError where the epoch is no longer ours."""

    async def release(self, node: NodeId, leases: Sequence[Lease]) -> None:
        """Give shards back unfinished, for anyone to take at once."""

    async def depth(self) -> QueueDepth:
        """How much is left."""

    async def wait(self, timeout_s: float) -> None:
        """Return when there may be new work, or after `timeout_s`."""


class Payloads(Protocol):
    """Where a shard's requests are read from."""

    async def read(self, lease: Lease) -> Sequence[Request]:
        """The shard's requests in index order, without the rejected lines."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Outcomes of one lease that have become durable."""

    lease: Lease
    count: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What earlier runs have recorded of a shard."""

    finished: frozenset[int] = frozenset()
    """Indexes that have an outcome."""
    tally: Tally = field(default_factory=Tally)
    """What those outcomes add up to."""
    grudges: Mapping[int, Grudge] = field(default_factory=dict)
    """What is held against requests without an outcome, by index."""


class Recorder(Protocol):
    """Where outcomes are made durable."""

    async def open(self, lease: Lease, requests: Sequence[Request]) -> Replay:
        """Begin a shard, and say what earlier runs have recorded of it."""

    def append(self, lease: Lease, outcome: Outcome) -> None:
        """Hand over an outcome. It counts only when `recorded` has told so."""

    def remember(self, lease: Lease, index: int, grudge: Grudge) -> None:
        """Keep what is held against a request, for a later run."""

    async def recorded(self) -> Sequence[Recorded]:
        """Wait for the next outcomes to become durable, and say which."""

    async def close(self, lease: Lease) -> None:
        """End a shard, finished or not: every appended outcome is durable on return."""

    def hasten(self, lease: Lease) -> None:
        """Nothing more will come for this shard: make it durable now, not with the next group."""

    @property
    def obstacle(self) -> str | None:
        """Why nothing can be recorded just now (a full disk, say), or None."""


class Transport(Protocol):
    """The data plane: one send, no retry."""

    async def send(
        self, server: ServerSpec, request: Request, request_id: str, timeout_s: float | None
    ) -> Ending:
        """Post the request's body to the server and return how it ended. Raises only CancelledError."""


class Prober(Protocol):
    """The control plane: what a server says of itself. Never raises for what a server does."""

    async def probe(self, server: ServerSpec) -> ProbeReport:
        """`/health` alone."""

    async def inspect(self, server: ServerSpec) -> ProbeReport:
        """`/health`, `/v1/models`, `/is_sleeping`, `/version` and the process's start time."""

    async def canary(
        self, server: ServerSpec, model: str | None, known: KnownAnswer | None = None
    ) -> CanaryReport:
        """Ask the engine for one token; or, where it writes text, for an answer that is known."""

    async def scrape(self, server: ServerSpec, timeout_s: float | None = None) -> Telemetry | None:
        """`/metrics`; None where there is none or it cannot be read in time. None: a probe's time."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """An answer that its job has no use for, though its server has done what it was asked."""

    message: str
    again: Request | None
    """What to ask instead; None where it has been asked often enough."""


class Review(Protocol):
    """Looks at a success before it counts: a pure function."""

    def __call__(self, request: Request, judgement: Judgement, asked: int) -> Unusable | None:
        """None where the answer is good. `asked` is how often the request was asked again already."""


class Judge(Protocol):
    """Maps an attempt's ending to a judgement: a pure function."""

    def __call__(
        self,
        ending: Ending,
        request: Request,
        models: dict[str, str] | None,
        *,
        healthy: bool | None = None,
    ) -> Judgement:
        """`models` is the server's own list, served name -> root; None where it has none.

        `healthy` is what `/health` said just after the ending, asked only where a 503 leaves doubt.
        """


@dataclass(frozen=True, slots=True)
class Sent:
    """An attempt, as a tracer is told of it when it is sent."""

    server: ServerId
    route: str
    model: str | None
    request_id: str
    """What the server is told as `X-Request-Id`."""
    queue_s: float
    """How long the request was ready, and waited for its permit."""
    sends: int
    """Which sending of its request it is, from 1."""
    is_copy: bool = False
    """Whether another attempt of its request is open."""
    job: JobId | None = None
    """None of a live request, as `index`."""
    index: int | None = None


class Span(Protocol):
    """What a tracer keeps of one attempt while it is open."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What makes another span its child: W3C Trace Context."""

    def end(self, judgement: Judgement | None) -> None:
        """The attempt has ended; None where nobody judged it. Only the first call counts."""


class Tracer(Protocol):
    """Follows attempts. No method waits, or raises."""

    def begin(self, sent: Sent, parent: Mapping[str, str]) -> Span:
        """An attempt is sent by the running task, as a child of what the headers `parent` tell, if any."""
