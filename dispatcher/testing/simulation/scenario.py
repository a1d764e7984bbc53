"""What a simulation consists of: a fleet, a job, and everything that goes wrong, with its time.

Records only; they turn into JSON and back with msgspec. Times are virtual seconds from the start.
"""

from dataclasses import dataclass, field
from enum import StrEnum, auto

from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.simulation.rows import JobPlan


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """One simulated server."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    models: tuple[str, ...] = ("model-a",)
    model_len: int = 8192
    joins_at: float = 0.0
    """Until then nobody listens: it loads its model."""
    waiting_max: int | None = None
    """Requests that may wait for the engine; more are refused with 503 or 429. None: no bound."""
    metrics: bool = True
    limit: int | None = None
    """A fixed number of permits; None lets the pool learn it."""
    latency_s: float = 0.001
    """From sending to arriving. 0 saves the simulator a timer a request."""
    health_s: float = 0.0
    """How long `/health` takes."""
    metrics_s: float = 0.0
    """How long `/metrics` takes."""


class FaultKind(StrEnum):
    """What can happen to a server, for a while."""

    KILLED = auto()  # the engine dies: open requests get 500, health is 200 a little longer, then refused
    TERMINATED = auto()  # SIGTERM: refused at once, open requests get neither answer nor close
    FROZEN = auto()  # the engine stands still: health 200, metrics 0, completions hang
    ASLEEP = auto()
    SLOW_HEALTH = auto()  # /health takes 40 s times `share`
    UNREACHABLE = auto()  # a black hole: packets are lost, open requests are silent
    RESETTING = auto()  # a share of the requests ends with a reset
    FULL = auto()  # refuses with 503 or 429 and Retry-After whatever would have to wait
    TRUNCATING = auto()  # a share of the answers is cut
    GARBLING = auto()  # a share of the answers is no JSON
    UNFINISHED = auto()  # a share of the answers has no finish_reason
    FAILING = auto()  # a share of the answers is a plain 500
    MISNAMING = auto()  # a share of the answers comes from another model
    SWAPPED = auto()  # started again with another model, and afterwards with its own
    RESTARTED = auto()  # gone for `seconds`, and back as a new process


SPOILING = (
    FaultKind.TRUNCATING,
    FaultKind.GARBLING,
    FaultKind.UNFINISHED,
    FaultKind.FAILING,
    FaultKind.MISNAMING,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to one server."""

    kind: FaultKind
    server: int
    at: float
    seconds: float
    share: float = 1.0


class DeathKind(StrEnum):
    """How a dispatcher ends before its work is done."""

    KILLED = auto()  # kill -9: what was handed to the system stays, what was not is lost
    POWER_CUT = auto()  # what was not synced is lost, or torn
    DRAINED = auto()  # SIGTERM


@dataclass(frozen=True, slots=True)
class Death:
    """The end of the dispatcher then at work, once so many events have happened. Another one follows."""

    kind: DeathKind
    after_events: int
    pause_s: float
    """Until the next one starts."""


@dataclass(frozen=True, slots=True)
class Spell:
    """A time in which something does not work."""

    at: float
    seconds: float

    def covers(self, now: float) -> bool:
        """Whether it goes on at that time."""
        return self.at <= now < self.at + self.seconds


@dataclass(frozen=True, slots=True)
class ClockJump:
    """The wall clock is set forward, or back, by so many seconds."""

    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """One simulation, whole. The same scenario always takes the same course."""

    seed: int
    servers: tuple[ServerPlan, ...]
    job: JobPlan
    faults: tuple[Fault, ...] = ()
    deaths: tuple[Death, ...] = ()
    queue_outages: tuple[Spell, ...] = ()
    """The first node cannot reach the queue: it loses its leases where this lasts longer than `lease_s`."""
    full_disk: Spell | None = None
    clock_jumps: tuple[ClockJump, ...] = ()
    second_node_at: float | None = None
    """When another node joins, which shares queue and journals with the first."""
    shard_size: int = 32
    lease_s: float = 30.0
    sync_s: float = 1.0
    stall_s: float = 20.0
    probe_interval_s: float = 5.0
    probe_timeout_s: float = 10.0
    request_timeout_s: float | None = None
    max_attempts: int = 3
