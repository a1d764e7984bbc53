"""A scenario, run to its end under virtual time, and what came of it."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import structlog

from dispatcher.config import Config
from dispatcher.errors import DispatcherError
from dispatcher.model import Job, JobId, ServerId, ServerSpec, Shard
from dispatcher.queue.memory import MemoryQueue
from dispatcher.results.finalise import finalise
from dispatcher.testing.simulation import faults
from dispatcher.testing.simulation.invariants import check_outcomes, deadline_s
from dispatcher.testing.simulation.ledger import Ledger
from dispatcher.testing.simulation.life import Life, Surroundings
from dispatcher.testing.simulation.queues import WallClocked
from dispatcher.testing.simulation.reaper import Reaper
from dispatcher.testing.simulation.rows import Rows
from dispatcher.testing.simulation.scenario import Death, DeathKind, Scenario
from dispatcher.testing.simulation.servers import SimulatedServer
from dispatcher.testing.simulation.virtual_loop import (
    DeadlockError,
    VirtualClock,
    VirtualLoop,
    run_virtually,
)

JOB = JobId("simulated")
UNTOLD = frozenset({"event", "request_id"})
"""Fields of what is logged that the ledger's lines are without: a node's request ids begin at random."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a simulation. It passed where nothing was breached."""

    seed: int
    breaches: tuple[str, ...]
    latest: tuple[str, ...]
    """The last events, for whoever looks into a breach."""
    digest: str
    """A hash of the whole course: equal for equal scenarios."""
    virtual_s: float
    events: int
    counts: dict[str, int]
    """Events by kind."""
    outcomes: dict[str, int]
    """Rows by how they ended: `ok`, or an error code."""

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return not self.breaches


def run_scenario(scenario: Scenario) -> Report:
    """Run a scenario. Never raises for what the dispatcher does wrong: that is in the report."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dispatcher-")))
        simulation = Simulation(scenario, folder)
        stack.enter_context(logged_into(simulation.ledger))
        simulation.run()
        return simulation.report()


class Simulation:
    """One run of one scenario in a folder of its own."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.ledger = Ledger(lambda: 0.0)
        self._folder = folder
        self._job = Job(JOB, max_attempts=scenario.max_attempts, request_timeout_s=scenario.request_timeout_s)
        self._random = Random(scenario.seed)
        self._outcomes: dict[str, int] = {}
        self._virtual_s = 0.0
        self._servers: list[SimulatedServer] = []

    def run(self) -> None:
        """Let it all happen."""
        try:
            run_virtually(self._simulate())
        except DeadlockError as error:
            self.ledger.breach(f"deadlock: {error}")
        except Exception as error:  # noqa: BLE001  # whatever the dispatcher raises is a finding
            self.ledger.breach(f"it raised {words(error)}")

    def report(self) -> Report:
        """What came of it."""
        ledger = self.ledger
        return Report(
            self.scenario.seed,
            tuple(ledger.breaches),
            tuple(ledger.latest),
            ledger.digest,
            self._virtual_s,
            ledger.events,
            dict(sorted(ledger.counts.items())),
            self._outcomes,
        )

    async def _simulate(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), "a simulation runs in virtual time"
        clock = VirtualClock(loop)
        self.ledger.now = clock.now
        around = self._surroundings(clock)
        faults.schedule(self.scenario.faults, self._servers, self.ledger, loop)
        for jump in self.scenario.clock_jumps:
            loop.call_at(jump.at, clock.jump, jump.seconds)
        try:
            async with asyncio.timeout(deadline_s(self.scenario)):
                await self._all_lives(around)
        except TimeoutError:
            self.ledger.breach(f"not finished within {deadline_s(self.scenario):.0f} s: {loop.waiting()}")
            return
        finally:
            self._virtual_s = clock.now()
        left = [name for name in loop.waiting() if name != asyncio.current_task().get_name()]  # type: ignore[union-attr]
        self.ledger.require(not left, f"tasks are left: {left}")
        self._finalise()

    def _surroundings(self, clock: VirtualClock) -> Surroundings:
        scenario = self.scenario
        loop = asyncio.get_running_loop()
        ids = [ServerId(f"http://s{number}") for number in range(len(scenario.servers))]
        self._servers = [
            SimulatedServer(id_, plan, loop, Random(f"{scenario.seed} {id_}"))
            for id_, plan in zip(ids, scenario.servers, strict=True)
        ]
        queue = MemoryQueue(WallClocked(clock), scenario.lease_s)
        for shard in shards_of(self.scenario):
            queue.add(self._job, shard)
        queue.close()
        return Surroundings(
            config_of(scenario),
            Rows(scenario.job, scenario.seed),
            dict(zip(ids, self._servers, strict=True)),
            [ServerSpec(id_, id_, limit=plan.limit) for id_, plan in zip(ids, scenario.servers, strict=True)],
            queue,
            self._folder / "journals",
            clock,
            self.ledger,
            lambda: any(outage.covers(clock.now()) for outage in scenario.queue_outages),
            lambda: scenario.full_disk is not None and scenario.full_disk.covers(clock.now()),
        )

    # Lives

    async def _all_lives(self, around: Surroundings) -> None:
        async with asyncio.TaskGroup() as chains:
            chains.create_task(self._chain(around, "a", self.scenario.deaths), name="chain a")
            if self.scenario.second_node_at is not None:
                chains.create_task(self._join_later(around), name="chain b")

    async def _join_later(self, around: Surroundings) -> None:
        assert self.scenario.second_node_at is not None, "asked for only where there is one"
        await around.clock.sleep(self.scenario.second_node_at)
        await self._chain(around, "b", ())

    async def _chain(self, around: Surroundings, name: str, deaths: tuple[Death, ...]) -> None:
        """One dispatcher after the other: a new life follows each death, until the queue is drained."""
        ends: list[Death | None] = [*deaths, None]
        for number, death in enumerate(ends):
            life = Life(f"{name}{number}", around, Random(f"{self.scenario.seed} {name}{number}"))
            await self._live(life, death)
            if death is None or (await around.queue.depth()).drained:
                return
            await around.clock.sleep(death.pause_s)

    async def _live(self, life: Life, death: Death | None) -> None:
        self.ledger.note("start", life.name)
        living = asyncio.create_task(life.live(), name=f"life {life.name}")
        reaper = Reaper(life, living, death, self.ledger)
        try:
            await asyncio.wait({living})
        finally:
            reaper.stop()
            living.cancel()
        await reaper.last_rites()
        if not life.killed:
            living.result()
        elif death is not None and death.kind is DeathKind.POWER_CUT:
            life.disk.lose_power(self._random)

    def _finalise(self) -> None:
        output, errors = self._folder / "output.jsonl", self._folder / "errors.jsonl"
        try:
            finalise(self._job, shards_of(self.scenario), self._folder / "journals", output, errors)
        except DispatcherError as error:
            self.ledger.breach(f"no output can be made: {error}")
            return
        spoilt = {
            index: sum(server.spoilt[index] for server in self._servers)
            for index in range(self.scenario.job.rows)
        }
        self._outcomes = check_outcomes(self.scenario, self.ledger, spoilt, (output, errors))


@contextmanager
def logged_into(ledger: Ledger) -> Iterator[None]:
    """Take what the dispatcher logs into the ledger."""

    def take(_logger: Any, _level: str, event: structlog.typing.EventDict) -> str:
        fields = (f"{name}={value}" for name, value in event.items() if name not in UNTOLD)
        ledger.note(event["event"], *fields)
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[take], wrapper_class=structlog.BoundLogger)
    try:
        yield
    finally:
        structlog.configure(**before)


def shards_of(scenario: Scenario) -> list[Shard]:
    """The job's shards."""
    rows, size = scenario.job.rows, scenario.shard_size
    return [
        Shard(number, first, min(size, rows - first), first, min(size, rows - first))
        for number, first in enumerate(range(0, rows, size))
    ]


def config_of(scenario: Scenario) -> Config:
    """The dispatcher's settings in a scenario."""
    return Config.model_validate(
        {
            "pool": {
                "stall_s": scenario.stall_s,
                "probe_interval_s": scenario.probe_interval_s,
                "scrape_interval_s": scenario.probe_interval_s,
                "probe_timeout_s": scenario.probe_timeout_s,
            },
            "queue": {"lease_s": scenario.lease_s, "shard_size": scenario.shard_size},
            "results": {"sync_s": scenario.sync_s},
            "dispatch": {
                "max_attempts": scenario.max_attempts,
                "request_timeout_s": scenario.request_timeout_s,
            },
        }
    )


def words(error: BaseException) -> str:
    """An error in a line."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(words(part) for part in error.exceptions)
    return f"{type(error).__name__}: {error}"
