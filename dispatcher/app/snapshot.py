"""A picture of a run for whoever shows it: plain data, taken at one moment."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto

from dispatcher.dispatch.node import Node
from dispatcher.model import Tally
from dispatcher.pool.pool import Pool
from dispatcher.pool.server import Server
from dispatcher.pool.states import State


class Phase(StrEnum):
    """What a run is doing."""

    STARTING = auto()
    READING = auto()  # the ingest pass
    RUNNING = auto()
    DRAINING = auto()
    WRITING = auto()  # output and error files
    FINISHED = auto()


@dataclass(frozen=True, slots=True)
class ServerView:
    """One server. Times are seconds; rates are rows a second over the last minute."""

    server: str
    state: str
    in_state_s: float
    reason: str
    in_flight: int
    limit: int
    succeeded: int
    failed: int
    evictions: int
    last_fault: str
    last_fault_ago_s: float | None
    serving: str = ""
    """The models it serves, while it is in rotation and rows wait for others."""
    plain_reason: str = ""
    """`reason` without the server's words, which can repeat a prompt: what a log may hold."""
    plain_fault: str = ""
    """And of `last_fault`."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment. Rows are counted when their outcome is durable."""

    phase: Phase
    rows: int
    done: Tally
    """Durable outcomes, those of earlier runs included."""
    this_run: Tally
    in_flight: int = 0
    rows_per_s: float = 0.0
    tokens_per_s: float = 0.0
    seconds: float = 0.0
    obstacle: str | None = None
    """Why nothing can be recorded or leased just now."""
    waiting_for: tuple[str | None, ...] = ()
    """Models that rows wait for and no server in rotation serves; None is any."""
    servers: tuple[ServerView, ...] = ()
    by_server: Mapping[str, int] = field(default_factory=dict)
    """Successes of this run by server."""
    step: str = ""
    """Which of several steps this is of."""

    @property
    def left(self) -> int:
        """Rows without a durable outcome."""
        return max(0, self.rows - self.done.succeeded - self.done.failed)

    @property
    def eta_s(self) -> float | None:
        """Seconds until the last row at the present rate; None without a rate, or while rows are held up."""
        held_up = self.obstacle is not None or self.waiting_for
        return None if held_up or self.rows_per_s <= 0 else self.left / self.rows_per_s


def view_server(server: Server, now: float, wanted: Collection[str | None] = ()) -> ServerView:
    """What there is to say of one server. `wanted`: the models that rows wait for; None is any."""
    record = server.record
    unfit = server.state is State.ACTIVE and not all(server.serves(model) for model in wanted)
    return ServerView(
        server=server.spec.id,
        state=server.state.value,
        in_state_s=now - server.machine.since,
        reason=server.reason,
        in_flight=server.in_flight,
        limit=server.limit.permits(now) if server.state is State.ACTIVE else 0,
        succeeded=record.succeeded,
        failed=record.failed,
        evictions=record.evictions,
        last_fault=record.last_fault,
        last_fault_ago_s=None if record.last_fault_at is None else now - record.last_fault_at,
        serving=server.serving if unfit else "",
        plain_reason=server.plain_reason,
        plain_fault=record.last_fault_plain,
    )


def view_run(
    phase: Phase, rows: int, earlier: Tally, node: Node, pool: Pool, obstacle: str | None, now: float
) -> Snapshot:
    """A run with its node and servers. `earlier` is what the shards settled by earlier runs add up to."""
    rows_per_s, tokens_per_s = node.progress.rates(now)
    servers = sorted(pool.servers.values(), key=lambda server: server.spec.id)
    return Snapshot(
        phase=phase,
        rows=rows,
        done=earlier + node.progress.total,
        this_run=node.progress.tally,
        in_flight=node.desk.in_flight,
        rows_per_s=rows_per_s,
        tokens_per_s=tokens_per_s,
        seconds=now - node.progress.started_at,
        obstacle=obstacle or node.obstacle,
        waiting_for=node.waiting.models,
        servers=tuple(view_server(server, now, node.waiting.models) for server in servers),
        by_server={str(server): rows for server, rows in node.progress.by_server.items()},
    )
