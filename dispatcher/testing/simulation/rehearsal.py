"""A job on a fleet, rehearsed in virtual time: how long it would take, and where the time would go."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from dispatcher.testing.simulation import fleet
from dispatcher.testing.simulation.capacity import tokens_per_s
from dispatcher.testing.simulation.counting import Answers
from dispatcher.testing.simulation.fleet import Member
from dispatcher.testing.simulation.ideal import ideal_s
from dispatcher.testing.simulation.plan import Plan
from dispatcher.testing.simulation.policies import Policy, Setting, dispatchers
from dispatcher.testing.simulation.rows import JobPlan, Rows
from dispatcher.testing.simulation.servers import SimulatedServer
from dispatcher.testing.simulation.virtual_loop import run_virtually


@dataclass(frozen=True, slots=True)
class ServerUse:
    """What one server did until the last answer."""

    server: str
    group: str
    rows: int
    """Rows it answered."""
    tokens: int
    """Output tokens of its answers."""
    lost_tokens: int
    """Output tokens that it made, and that nobody got."""
    up_s: float
    utilisation: float
    """Output tokens of its answers, as a share of what a full batch makes in the time it was up."""
    lost_s: float
    """Its own time that went into lost tokens."""
    down_s: float
    deaths: int


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """How a rehearsal went."""

    rows: int
    nodes: int
    failed: int
    """Rows that no server answered: poison, or whose servers died too often."""
    makespan_s: float
    """Until the last answer; 0 where there was none."""
    ideal_s: float
    sends: int
    servers: tuple[ServerUse, ...]

    @property
    def efficiency(self) -> float:
        """The ideal's share of the makespan: 1 is perfect, and 0 means that no row was answered."""
        return self.ideal_s / self.makespan_s if self.makespan_s else 0.0

    @property
    def rows_per_s(self) -> float:
        """Answered rows a second over the whole makespan."""
        return (self.rows - self.failed) / self.makespan_s if self.makespan_s else 0.0


def rehearse(plan: Plan, seed: int, policy: Policy | None = None, ideal: float | None = None) -> Rehearsal:
    """Rehearse a plan, by the dispatcher's nodes or by another policy.

    `ideal` saves computing the ideal makespan; without it, the usual best order's is.
    """
    policy = policy or dispatchers((0.0,) * plan.nodes)
    rows, listed = Rows(plan.job_plan(), seed), fleet.members(plan, seed)
    with quiet():
        answers, uses = run_virtually(_run(rows, listed, policy, seed))
    if ideal is None:
        ideal = ideal_s(listed, rows, thorough=False)
    return Rehearsal(plan.job.rows, plan.nodes, answers.missing, answers.last_at, ideal, answers.sends, uses)


async def _run(
    rows: Rows, listed: list[Member], policy: Policy, seed: int
) -> tuple[Answers, tuple[ServerUse, ...]]:
    loop = asyncio.get_running_loop()
    servers, answers = fleet.start(listed, loop), Answers(loop, rows.plan.rows)
    await policy(Setting(rows, servers, [member.spec for member in listed], answers, seed))
    return answers, tuple(_use(member, servers[member.id], rows.plan, answers) for member in listed)


def _use(member: Member, server: SimulatedServer, job: JobPlan, answers: Answers) -> ServerUse:
    work, pace, until = server.work, tokens_per_s(member.engine, job), answers.last_at
    lost = max(0, server.tokens_made() - work.delivered)
    down_s = work.down_until(until)
    up_s = 0.0 if member.group.black_hole else max(0.0, until - member.joins_at - down_s)
    return ServerUse(
        member.id,
        member.group.name,
        answers.by_server[member.id],
        work.delivered,
        lost,
        up_s,
        work.delivered / (pace * up_s) if up_s else 0.0,
        lost / pace,
        down_s,
        work.deaths,
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Let the dispatcher log nothing."""
    before = structlog.get_config()
    structlog.configure(processors=[_drop], wrapper_class=structlog.BoundLogger)
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop(_logger: object, _level: str, _event: structlog.typing.EventDict) -> str:
    raise structlog.DropEvent


def by_group(uses: Sequence[ServerUse]) -> dict[str, list[ServerUse]]:
    """The servers of each group."""
    groups: dict[str, list[ServerUse]] = {}
    for use in uses:
        groups.setdefault(use.group, []).append(use)
    return groups
