"""What the deciding layers need from the world. Each port belongs to its consumer and is kept narrow."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dispatcher.config import KnownAnswer
from dispatcher.model import (
    AgainReason,
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
        """End a shard, finished or not: every appended outcome is durable on return.

        Raises LeaseLostError where the lease ended first.
        """

    def hasten(self, lease: Lease) -> None:
        """Nothing more will come for this shard: make it durable now, not with the next group."""

    @property
    def obstacle(self) -> str | None:
        """Why nothing can be recorded just now (a full disk, say), or None."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a store has under a key."""

    key: str
    size: int
    """Bytes."""
    changed_at: float
    """When it was written, in seconds since the epoch, by the store's own clock."""
    version: str
    """Another one with every writing."""


class Incoming(Protocol):
    """Bytes on their way into a store."""

    async def write(self, piece: bytes) -> None:
        """Append."""

    async def keep(self) -> None:
        """Have it whole and durable under its key."""


class Store(Protocol):
    """Bytes by key, `files/file-1`: a directory, or an object store that several nodes share.

    What is written is there as a whole or not at all, and durable once it is said to be. Every method raises
    StorageError, after it has tried for a while where the store is not available.
    """

    def receive(self, key: str, bytes_max: int | None = None) -> AbstractAsyncContextManager[Incoming]:
        """Write a stream. Left without `keep`, nothing of it stays.

        `bytes_max`, where it is known, is what it may come to: parts are made so large that these suffice.
        """

    async def put(self, key: str, content: bytes, replaces: str | None = None) -> str:
        """Write the whole, and return its version, if what is there has the version that it `replaces`.

        None: if nothing is there. Raises TakenError where that is not so.
        """

    async def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Up to `length` bytes from `start`, which is before its end; None: all of them.

        Raises MissingError where there is no such key.
        """

    async def find(self, key: str) -> Stored | None:
        """What is there; None where there is no such key."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove these; those that are not there are no error."""

    def list(self, folder: str) -> AsyncIterator[Stored]:
        """All keys that begin with `folder` and a slash, in no order."""

    def path(self, key: str) -> Path | None:
        """Where the key's bytes are a file of this machine; None where they are no file."""

    @property
    def obstacle(self) -> str | None:
        """Why it has not answered for some seconds, or None."""


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
class Asked:
    """What else is known of a request when its answer is looked at."""

    times: int = 0
    """How often it was asked again already because its answers were of no use."""
    context_tokens: int | None = None
    """Tokens that prompt and answer may have together at the server that answered; None: it does not say."""
    notes: object = None
    """What the review keeps of this request from one answer to the next; None before the first."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """An answer that its job has no use for, though its server has done what it was asked."""

    message: str
    again: Request | None
    """What to ask instead; None where it has been asked often enough."""
    reason: AgainReason = AgainReason.INVALID


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An answer that is of use, while more is to be asked."""

    again: Request
    """What to ask next."""
    so_far: bytes | None
    """The outcome's body, should the rest not be had: one line of strict JSON. None: it is no success yet."""
    notes: object
    """For the look at the next answer. Never None."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What is recorded in the place of an answer."""

    body: bytes
    """One line of strict JSON."""


class Wording(Protocol):
    """Puts a request as a server of some version understands it: a pure function."""

    def __call__(self, request: Request, version: str | None) -> Request:
        """`version` is the server's own word; None where it has none. The same request where it will do."""


class Review(Protocol):
    """How a job asks, and what it makes of answers. It neither waits nor reaches out."""

    def __call__(
        self, request: Request, judgement: Judgement, asked: Asked
    ) -> Unusable | Unfinished | Counted | None:
        """Look at a success before it counts. None where the answer is good as it is."""

    @property
    def wording(self) -> Wording:
        """How its requests are put."""


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
