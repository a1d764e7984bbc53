"""A plan's servers, living and dying as it says."""

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from dispatcher.model import ServerId, ServerSpec
from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.simulation.plan import Plan, ServerGroup
from dispatcher.testing.simulation.scenario import ServerPlan
from dispatcher.testing.simulation.servers import SimulatedServer


@dataclass(frozen=True, slots=True)
class Member:
    """One server of a plan."""

    id: ServerId
    group: ServerGroup
    engine: EngineSettings
    joins_at: float
    seed: str

    @property
    def spec(self) -> ServerSpec:
        """As the dispatcher is told of it."""
        limit = None if self.group.limit == "auto" else self.group.limit
        return ServerSpec(self.id, self.id, limit=limit)

    def outages(self) -> Iterator[tuple[float, float]]:
        """When it goes down, and when it is back: for ever, the same at each call."""
        if self.group.dies_every_s is None:
            return
        random, now = Random(self.seed), self.joins_at
        lived = self.group.dies_every_s * random.random()  # some have been up for long when the job starts
        while True:
            down_at = now + max(1.0, self.group.dies_every_s * random.uniform(0.5, 1.5) - lived)
            now, lived = down_at + self.group.back_after_s, 0.0
            yield down_at, now


def members(plan: Plan, seed: int) -> list[Member]:
    """Every server of the plan."""
    listed = []
    for group in plan.fleet:
        engine = group.engine()
        for number in range(group.count):
            later_s = group.starts_over_s * number / max(1, group.count - 1)
            id_ = ServerId(f"{group.name}-{number}")
            listed.append(Member(id_, group, engine, group.starts_after_s + later_s, f"{seed} {id_}"))
    return listed


def start(listed: list[Member], loop: asyncio.AbstractEventLoop) -> Mapping[ServerId, SimulatedServer]:
    """Make the simulated servers, and let each live and die as its group does."""
    servers = {member.id: _start(member, loop) for member in listed}
    for member in listed:
        if member.group.black_hole:
            servers[member.id].lose_packets(lost=True)
        _Churn(member, servers[member.id], loop)
    return servers


def _start(member: Member, loop: asyncio.AbstractEventLoop) -> SimulatedServer:
    plan = ServerPlan(member.engine, joins_at=member.joins_at, latency_s=0.0, metrics=member.group.metrics)
    return SimulatedServer(member.id, plan, loop, Random(member.seed))


class _Churn:
    """Kills a server at its times. Every second end is a SIGTERM, as when a node is preempted."""

    def __init__(self, member: Member, server: SimulatedServer, loop: asyncio.AbstractEventLoop) -> None:
        self._outages = member.outages()
        self._server = server
        self._loop = loop
        self._ends = itertools.cycle((server.kill, server.terminate))
        self._plan_next()

    def _plan_next(self) -> None:
        outage = next(self._outages, None)
        if outage is not None:
            self._loop.call_at(outage[0], self._strike, outage[1] - outage[0])

    def _strike(self, back_after_s: float) -> None:
        next(self._ends)(back_after_s)
        self._plan_next()
