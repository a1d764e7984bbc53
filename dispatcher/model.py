"""The records that travel between the parts, in the words of docs/architecture.md.

Hot records are `msgspec.Struct`s without garbage-collector tracking: one is made per row, and they hold no
reference cycles. Times are seconds, sizes bytes, indexes 0-based.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import NewType

import msgspec

JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
ServerId = NewType("ServerId", str)
"""A server's base URL without credentials, e.g. `http://gpu1:8000`: its name in logs and metrics."""


class ErrorCode(StrEnum):
    """Why a request has no answer. These are stable: they stand in error files and in the README."""

    INVALID_REQUEST = auto()
    CONTEXT_LENGTH = auto()
    MODEL_NOT_FOUND = auto()
    TIMEOUT = auto()
    SERVER_ERROR = auto()
    INVALID_RESPONSE = auto()
    INVALID_ANSWER = auto()
    NOT_ASKED = auto()
    POISON = auto()
    BATCH_EXPIRED = auto()
    BATCH_CANCELLED = auto()
    RESENDS_EXHAUSTED = auto()


class AgainReason(StrEnum):
    """Why a request was asked again though its server had done its part: a label of metrics."""

    CUT = auto()  # the answer was ended by its length
    EMPTY = auto()
    INVALID = auto()  # no label, or not by the schema
    REFUSED = auto()  # the caller's own check did not want it
    UNFINISHED = auto()  # the answer counts, and more is to be known


class Verdict(StrEnum):
    """What the end of an attempt means, and whose fault it was."""

    SUCCESS = auto()
    REQUEST_FAULT = auto()
    DOUBTFUL = auto()
    OVERLOAD = auto()
    SERVER_FAULT = auto()
    MISMATCH = auto()
    STALLED = auto()
    STALE_CONNECTION = auto()
    LOCAL_FAULT = auto()


class BreakKind(StrEnum):
    """How an attempt ended without a whole HTTP answer."""

    REFUSED = auto()  # nobody listens there
    RESET = auto()  # the connection broke after the request went out
    STALE = auto()  # a reused connection was closed before any byte of the answer
    TRUNCATED = auto()  # the answer's body was shorter than announced
    TIMED_OUT = auto()  # the request's own deadline passed
    CONNECT_TIMED_OUT = auto()  # no connection within pool.connect_timeout_s
    UNRESOLVED = auto()  # DNS
    TLS = auto()
    PROTOCOL = auto()  # what came back is not HTTP, or is larger than allowed
    GIVEN_UP = auto()  # we closed it: the server was lost, or the lease, or its copy was answered first
    LOCAL = auto()  # this machine: no descriptors, no ports, no memory
    SILENT = auto()  # we closed it: its server works, and makes nothing for it
    OFFLINE = auto()  # no way out of this machine: no network, no resolver
    AWAY = auto()  # its time ran out while this process stood still


class Request(msgspec.Struct, frozen=True, gc=False):
    """One line of the input, ready to be sent."""

    index: int
    """Position among the job's non-blank lines, from 0. Output order is index order."""
    custom_id: str
    url: str
    """A route of the server, e.g. `/v1/chat/completions`."""
    model: str | None
    """The body's `model`, after defaults; None lets the server choose."""
    body: bytes
    """The JSON object to post: the input's own bytes where nothing had to be changed."""
    withheld: str | None = None
    """Why it is not to be sent: it ends at once, as `not_asked`."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A whole HTTP answer."""

    status: int
    body: bytes
    content_type: str = ""
    request_id: str | None = None
    retry_after_s: float | None = None


class Break(msgspec.Struct, frozen=True, gc=False):
    """An attempt that ended without a whole HTTP answer."""

    kind: BreakKind
    detail: str = ""


Ending = Answer | Break


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """The tokens that a server says it counted for one request."""

    prompt: int = 0
    completion: int = 0

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.prompt + other.prompt, self.completion + other.completion)


NO_TOKENS = Tokens()


class Judgement(msgspec.Struct, frozen=True, gc=False):
    """What an ending means. `code` is what the request's error would be if this were its last attempt."""

    verdict: Verdict
    code: ErrorCode | None = None
    message: str = ""
    body: bytes | None = None
    """A success: the answer as one line of strict JSON. A fault: the server's JSON, where it is short."""
    status: int | None = None
    request_id: str | None = None
    tokens: Tokens = NO_TOKENS
    retry_after_s: float | None = None
    hard: bool = False
    """Whether this alone proves that the server cannot serve: nobody listens, or its engine is dead."""
    broken: bool = False
    """Whether the request was running when its connection or its engine went: it may have been the cause."""
    offline: bool = False
    """Whether there was no way from here to the server: nobody's fault, but it cannot be given requests."""

    @property
    def plainly(self) -> str:
        """What a log may hold of it: not the server's words, which can repeat a prompt."""
        if self.status is not None:
            return f"HTTP {self.status}: {self.verdict.value}"
        # What is not HTTP is quoted in the detail, after our own words.
        return self.message.partition(":")[0] if self.code is ErrorCode.INVALID_RESPONSE else self.message


class Provenance(msgspec.Struct, frozen=True, gc=False):
    """Which server answered, and what it took."""

    server: str | None
    model: str | None
    server_version: str | None
    attempts: int
    """Sends of this request, in this run of the dispatcher, whatever they were charged to."""
    seconds: float
    """Duration of the last send."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """A request's final result. Exactly one per request. `code` is None for a success."""

    index: int
    custom_id: str
    code: ErrorCode | None
    message: str = ""
    status: int | None = None
    request_id: str | None = None
    body: bytes | None = None
    """The server's answer: one line of strict JSON, or None."""
    tokens: Tokens = NO_TOKENS
    provenance: Provenance | None = None

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return self.code is None

    @property
    def response(self) -> dict[str, object] | None:
        """The server's answer, decoded; None where there is none."""
        return None if self.body is None else msgspec.json.decode(self.body, type=dict[str, object])


@dataclass(frozen=True, slots=True)
class Job:
    """One submitted input with the settings that its requests are run under."""

    id: JobId
    max_attempts: int = 3
    request_timeout_s: float | None = None
    model: str | None = None
    """Stands in for a body's missing `model`."""
    model_override: str | None = None
    """Replaces every body's `model`."""
    provenance: bool = True
    mark: str | None = None
    """Stands in the ids of output lines instead of `id`, where given."""
    priority: int = 0
    """Of what a node has in hand, requests of a higher one are sent first."""
    weight: float = 1.0
    """Above 0. Among jobs of one priority, a node sends requests in proportion to this."""
    limit: int | None = None
    """How many of its requests may be in flight from one node; None: as many as there are permits."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A contiguous run of a job's non-blank input lines: the unit that the queue leases."""

    number: int
    first_index: int
    count: int
    """Lines in the run, the rejected ones included."""
    offset: int
    """Where its first line starts in the input file."""
    length: int
    """Bytes from there to the end of its last line."""
    rejected: tuple[int, ...] = ()
    """Indexes of lines that are not requests (`--on-invalid skip`), absolute, ascending."""

    @property
    def requests(self) -> int:
        """How many outcomes the shard owes."""
        return self.count - len(self.rejected)


@dataclass(frozen=True, slots=True)
class Lease:
    """One node's right to work on a shard. `epoch` is the fencing token: it grows with every takeover."""

    job: Job
    shard: Shard
    epoch: int


@dataclass(frozen=True, slots=True)
class Tally:
    """What a shard's, or a job's, outcomes add up to."""

    succeeded: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """Failed outcomes by error code."""

    def __add__(self, other: "Tally") -> "Tally":
        codes = self.errors.keys() | other.errors.keys()
        return Tally(
            self.succeeded + other.succeeded,
            self.failed + other.failed,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            {code: self.errors.get(code, 0) + other.errors.get(code, 0) for code in sorted(codes)},
        )

    def plus(self, outcomes: Iterable[Outcome]) -> "Tally":
        """This tally with these outcomes added."""
        succeeded, failed, prompt, completion = self.succeeded, self.failed, 0, 0
        errors = dict(self.errors)
        for outcome in outcomes:
            prompt += outcome.tokens.prompt
            completion += outcome.tokens.completion
            if outcome.code is None:
                succeeded += 1
            else:
                failed += 1
                errors[outcome.code.value] = errors.get(outcome.code.value, 0) + 1
        return Tally(
            succeeded, failed, self.prompt_tokens + prompt, self.completion_tokens + completion, errors
        )


@dataclass(frozen=True, slots=True)
class Grudge:
    """What an earlier run held against a request: servers died while it ran there."""

    deaths: int
    odds: float
    """That it is poison, as odds: 1.0 is even."""


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How much the queue holds. Requests are counted by shard: a leased shard counts whole."""

    shards_ready: int
    shards_leased: int
    shards_settled: int
    requests_ready: int
    requests_leased: int
    requests_settled: int

    @property
    def drained(self) -> bool:
        """Whether every shard is settled."""
        return self.shards_ready == 0 and self.shards_leased == 0


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """How to reach one server. `id` names it without credentials."""

    id: ServerId
    base_url: str
    """Scheme, host, port and path prefix, without a trailing slash and without `/v1`."""
    api_key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    limit: int | None = None
    """A fixed number of permits; None lets the pool decide."""
    host_name: str | None = None
    """The name whose address `base_url` holds: Host, SNI and certificate go by it. None: by `base_url`."""


class Health(StrEnum):
    """What `GET /health` said."""

    UP = auto()  # 200
    ABSENT = auto()  # 404 and the like: a server that has no such route, but answers
    DOWN = auto()  # 503 and other statuses that say no
    REFUSED = auto()  # nobody listens there
    UNREACHABLE = auto()  # reset, no route, DNS, TLS
    SLOW = auto()  # no answer in time; says nothing about a busy server
    UNASKED = auto()  # this machine could not ask, or stood still while it did


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What a probe saw. None means unknown, never zero or no."""

    health: Health
    detail: str = ""
    models: dict[str, str] | None = None
    """Served model name -> the root it is an alias or adapter of."""
    context_tokens: Mapping[str, int] | None = None
    """Served model name -> tokens that prompt and answer may have together, as far as it says."""
    sleeping: bool | None = None
    version: str | None = None
    started_at: float | None = None
    """`process_start_time_seconds`: a change means the server was restarted."""
    telemetry: "Telemetry | None" = None
    """Its load and capacity, of a full inspection."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One entry of a server's `/v1/models`."""

    id: str
    """The name to ask for."""
    root: str
    """What the name is an alias or an adapter of; the name itself where the server does not say."""
    parent: str | None = None
    """The model that a LoRA adapter belongs to."""
    max_model_len: int | None = None
    """Tokens that prompt and answer may have together; None where the server does not say."""


class CanaryFault(StrEnum):
    """How a canary, one token or a known answer asked of the engine, went wrong."""

    FAILED = auto()  # an error, or no connection
    DEAD = auto()  # nobody listens, or the engine is dead: the server ended while it was looked at
    SLOW = auto()  # no answer in time
    BUSY = auto()  # refused for load: it is alive, and what it would have answered is not known
    UNASKED = auto()  # this machine could not ask, or stood still while it did
    MISMATCHED = auto()  # our key or question is refused, the model is not there, or another one answered
    WRONG = auto()  # the known answer was to be heard, and was not


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """What became of a canary. `fault` is None where the engine answered as it should."""

    fault: CanaryFault | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """A server's own load figures, summed over its engines. None means that it does not say."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    preemptions_total: float | None = None
    generation_tokens_total: float | None = None
    prompt_tokens_total: float | None = None
    started_at: float | None = None
    kv_max_concurrency: float | None = None
