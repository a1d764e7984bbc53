"""The nodes that share the queue: who they are, and when they were last heard of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum, auto
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, delete, insert, select, update

from dispatcher.model import JobId, NodeId, Tally
from dispatcher.queue.bell import Bell
from dispatcher.queue.schema import custody, nodes, shards
from dispatcher.queue.transactions import WORK, Transactions
from dispatcher.queue.whole import whole


class NodeState(StrEnum):
    """What a node says of itself."""

    ACTIVE = auto()
    DRAINING = auto()  # it takes nothing more


@dataclass(frozen=True, slots=True)
class JobFigures:
    """What a node does for one job."""

    in_hand: Tally = field(default_factory=Tally)
    """Durable outcomes of the shards that it holds: of those that are settled the queue tells."""
    in_flight: int = 0
    rows_per_s: float = 0.0
    """Its own part, as of the tokens: over the last minute."""
    tokens_per_s: float = 0.0
    """Generated tokens."""
    rates_over_s: float = 0.0
    """How long the time is that the rates are taken over."""


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """What a node tells with every heartbeat."""

    state: NodeState = NodeState.ACTIVE
    in_flight: int = 0
    """Requests that are open at servers."""
    shards_leased: int = 0
    rows_per_s: float = 0.0
    """Of all its jobs, those included that `jobs` has no room for."""
    tokens_per_s: float = 0.0
    jobs: Mapping[JobId, JobFigures] = field(default_factory=dict)
    """What it works on, as far as there is room."""
    hungry: bool = False
    """Whether servers could take more than it has, and the queue has nothing for it."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """What stays the same for the life of a process."""

    id: NodeId
    host: str
    pid: int
    version: str
    """Of the dispatcher."""
    address: str | None = None
    """Where its API is reached by the other nodes: http://host:port."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node as the others see it."""

    identity: NodeIdentity
    figures: NodeFigures
    started_at: float
    """By the database's clock, as all times here: seconds since the epoch."""
    silent_s: float
    """Since its last heartbeat."""


class Nodes:
    """The table of nodes. Every method is a transaction, and raises as SqlQueue's."""

    def __init__(self, database: Transactions, bell: Bell, now: Callable[[], ColumnElement[float]]) -> None:
        self._database = database
        self._bell = bell
        self._now = now

    @whole
    async def register(self, identity: NodeIdentity) -> None:
        """Come in, or come in again after one was forgotten."""
        now = self._now()
        row = {**asdict(identity), **_row(NodeFigures()), "started_at": now, "heartbeat_at": now}
        async with self._database.write() as connection:
            await connection.execute(delete(nodes).where(nodes.c.id == identity.id))
            await connection.execute(insert(nodes).values(row))

    @whole
    async def heartbeat(self, node: NodeId, figures: NodeFigures) -> bool:
        """Say that the node lives. False where it was forgotten: then it is to register again."""
        beat = update(nodes).where(nodes.c.id == node).values(heartbeat_at=self._now(), **_row(figures))
        async with self._database.write() as connection:
            return (await connection.execute(beat)).rowcount > 0

    @whole
    async def list(self) -> Sequence[NodeRecord]:
        """All nodes, by host and age; those that have died silently until they are forgotten."""
        silent_s = (self._now() - nodes.c.heartbeat_at).label("silent_s")
        found = select(nodes, silent_s).order_by(nodes.c.host, nodes.c.started_at, nodes.c.id)
        async with self._database.read() as connection:
            rows = (await connection.execute(found)).all()
        return [
            NodeRecord(
                NodeIdentity(row.id, row.host, row.pid, row.version, row.address),
                NodeFigures(NodeState(row.state), row.in_flight, row.shards_leased, **_read_work(row.work)),
                row.started_at,
                max(0.0, row.silent_s),
            )
            for row in rows
        ]

    @whole
    async def remove(self, node: NodeId) -> None:
        """Go: all that the node holds, shards and jobs, is free at once for the others."""
        open_shards = update(shards).where(
            shards.c.node == node, shards.c.node.is_not(None), shards.c.settled_at.is_(None)
        )
        async with self._database.write() as connection:
            await connection.execute(open_shards.values(node=None, lease_expires_at=None))
            driven = update(custody).where(custody.c.node == node)
            await connection.execute(driven.values(node=None, expires_at=None))
            await connection.execute(delete(nodes).where(nodes.c.id == node))
            await self._database.announce(connection, WORK)
        self._bell.ring()

    @whole
    async def forget(self, silent_s: float) -> int:
        """Take those off the list that were not heard of for so long. What they held expires by itself."""
        gone = delete(nodes).where(nodes.c.heartbeat_at < self._now() - silent_s)
        async with self._database.write() as connection:
            return (await connection.execute(gone)).rowcount


class _Work(msgspec.Struct, frozen=True):
    """The part of the figures that is one column: a newer dispatcher's may say more."""

    rows_per_s: float = 0.0
    tokens_per_s: float = 0.0
    jobs: dict[JobId, JobFigures] = {}
    hungry: bool = False


def _row(figures: NodeFigures) -> dict[str, Any]:
    work = _Work(figures.rows_per_s, figures.tokens_per_s, dict(figures.jobs), figures.hungry)
    return {
        "state": figures.state.value,
        "in_flight": figures.in_flight,
        "shards_leased": figures.shards_leased,
        "work": msgspec.to_builtins(work),
    }


def _read_work(kept: object) -> dict[str, Any]:
    try:
        return msgspec.structs.asdict(msgspec.convert(kept, _Work))
    except msgspec.ValidationError:  # another version's: its other figures hold
        return {}
