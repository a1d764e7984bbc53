"""A scenario of several nodes, run to its end under virtual time, and what came of it."""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

from dispatcher.errors import DispatcherError
from dispatcher.model import Job, JobId, Lease, NodeId, ServerId, ServerSpec
from dispatcher.queue.memory import MemoryQueue
from dispatcher.testing.simulation import faults
from dispatcher.testing.simulation.invariants import check_outcomes, deadline_s
from dispatcher.testing.simulation.ledger import Ledger
from dispatcher.testing.simulation.nodes.holdings import HANDOVER_S, TAKEOVER_S, Holdings
from dispatcher.testing.simulation.nodes.life import NodeLife, Shared
from dispatcher.testing.simulation.nodes.outcomes import Outcomes
from dispatcher.testing.simulation.nodes.processes import ProcessLoop, World
from dispatcher.testing.simulation.nodes.queue import SharedQueue
from dispatcher.testing.simulation.nodes.records import Records, lost_s
from dispatcher.testing.simulation.nodes.scenario import NodesScenario, NodeTrouble, Trouble
from dispatcher.testing.simulation.nodes.store import Objects
from dispatcher.testing.simulation.nodes.weather import Weather
from dispatcher.testing.simulation.rows import Rows
from dispatcher.testing.simulation.run import Report, config_of, logged_into, shards_of, words
from dispatcher.testing.simulation.servers import SimulatedServer
from dispatcher.testing.simulation.virtual_loop import WALL_AT_START, DeadlockError, VirtualClock

JOB = JobId("simulated")
FOR_EVER_S = 1e9
"""Leases of nodes on one machine: whoever starts them gives back what a dead one had."""
NOTICED_S = 0.2
"""How soon a dead node is noticed there."""
CANCELS_MAX = 10
TOLD_S = 10.0
"""After a trouble, beyond a third of the lease time, until a node knows of every lease that it has lost."""


def run_nodes(scenario: NodesScenario) -> Report:
    """Run a scenario. Never raises for what the dispatcher does wrong: that is in the report."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dispatcher-")))
        simulation = NodesSimulation(scenario, folder)
        stack.enter_context(logged_into(simulation.ledger))
        simulation.run()
        return simulation.report()


class NodesSimulation:
    """One run of one scenario in a folder of its own."""

    def __init__(self, scenario: NodesScenario, folder: Path) -> None:
        self.scenario = scenario
        self.ledger = Ledger(lambda: 0.0)
        base = scenario.base
        self.lease_s = FOR_EVER_S if scenario.shared_disk else base.lease_s
        self.holdings = Holdings(self.ledger, self.lease_s)
        lost = lost_s(scenario.checkpoint_s, shared_disk=scenario.shared_disk)
        self.records = Records(
            self.ledger, self.holdings.taken, base.shard_size, lost, base.lease_s / 3 + TOLD_S
        )
        self._folder = folder
        self._job = Job(JOB, max_attempts=base.max_attempts, request_timeout_s=base.request_timeout_s)
        self._servers: list[SimulatedServer] = []
        self._living: dict[int, NodeLife] = {}
        self._dead: list[NodeLife] = []
        self._died: dict[int, asyncio.Future[NodeTrouble]] = {}
        self._outcomes: dict[str, int] = {}
        self._virtual_s = 0.0
        self._report: Report | None = None

    def run(self) -> None:
        """Let it all happen."""
        with asyncio.Runner(loop_factory=ProcessLoop) as runner:
            try:
                runner.run(self._simulate())
            except DeadlockError as error:
                self.ledger.breach(f"deadlock: {error}")
            except Exception as error:  # noqa: BLE001  # whatever the dispatcher raises is a finding
                self.ledger.breach(f"it raised {words(error)}")
            self._report = self._make_report()
            self._let_the_dead_go(runner)

    def report(self) -> Report:
        """What came of it."""
        assert self._report is not None, "it has been run"
        return self._report

    async def _simulate(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop), "a simulation runs in virtual time"
        self._loop = loop
        self.ledger.now = loop.time
        shared = self._share(loop)
        faults.schedule(self.scenario.base.faults, self._servers, self.ledger, loop)
        limit_s = nodes_deadline_s(self.scenario)
        try:
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as places:
                for place in range(len(self.scenario.starts)):
                    places.create_task(self._place(place, shared), name=f"place {place}")
        except TimeoutError:
            self.ledger.breach(f"not finished within {limit_s:.0f} s: {loop.waiting()}")
            return
        finally:
            self._virtual_s = loop.time()
        self._finalise()

    def _share(self, loop: ProcessLoop) -> Shared:
        base, world = self.scenario.base, World(loop)
        ids = [ServerId(f"http://s{number}") for number in range(len(base.servers))]
        self._servers = [
            SimulatedServer(id_, plan, world, Random(f"{base.seed} {id_}"))
            for id_, plan in zip(ids, base.servers, strict=True)
        ]
        memory = MemoryQueue(VirtualClock(loop), self.lease_s)
        for shard in shards_of(base):
            memory.add(self._job, shard)
        memory.close()
        objects = Objects(lambda: loop.time() + WALL_AT_START)
        self._truth = Outcomes(self._job, objects, self._journals, self.ledger)
        queue = SharedQueue(memory, self.holdings, loop.time)
        queue.on_settled, queue.on_released = self._settled, self._released
        self._shared_queue = queue
        return Shared(
            self.scenario,
            config_of(base),
            JOB,
            self.lease_s,
            loop,
            self.ledger,
            Rows(base.job, base.seed),
            dict(zip(ids, self._servers, strict=True)),
            [ServerSpec(id_, id_, limit=plan.limit) for id_, plan in zip(ids, base.servers, strict=True)],
            queue,
            objects,
            self._folder / "journals",
            self.records,
            Weather(self.scenario.troubles, len(self.scenario.starts), self.ledger, loop, self._strike),
        )

    @property
    def _journals(self) -> Path | None:
        return self._folder / "journals" if self.scenario.shared_disk else None

    def _settled(self, _node: NodeId, lease: Lease) -> None:
        self.records.settled.setdefault(lease.shard.number, lease.epoch)
        self._truth.settled(lease)

    # Lives

    async def _place(self, place: int, shared: Shared) -> None:
        """One node after the other at one place, until the queue is drained."""
        await asyncio.sleep(self.scenario.starts[place])
        machine = generation = 0
        while True:
            disk = self._folder / f"machine-{place}-{machine}"
            life = NodeLife(f"{'abcdefgh'[place]}{generation}", place, shared, disk)
            ended = await self._live(place, life, shared)
            if ended is None:
                return
            machine += ended.kind is Trouble.LOST
            generation += 1
            await asyncio.sleep(ended.seconds)
            if (await shared.queue.depth()).drained:
                return

    async def _live(self, place: int, life: NodeLife, shared: Shared) -> NodeTrouble | None:
        """Returns what ended it, if it was not the end of the work."""
        self.ledger.note("start", life.name)
        died = self._died[place] = self._loop.create_future()
        self._living[place] = life
        shared.queue.links.append(life.link)
        living = self._loop.start(life.process, life.live())
        await asyncio.wait({living, died}, return_when=asyncio.FIRST_COMPLETED)
        del self._living[place]
        shared.queue.links.remove(life.link)
        if living.done():
            living.result()
            self._notice(life)  # it may not have reached the queue in the end
        return died.result() if died.done() else life.ended_by

    def _strike(self, trouble: NodeTrouble) -> None:
        """What ends or stops a node: nothing, where none is there."""
        life = self._living.get(trouble.node)
        if life is None or life.process.stopped:
            return
        self.ledger.note("strike", life.name, trouble.kind)
        if trouble.kind is Trouble.FROZEN:
            self._freeze(life, trouble.seconds)
        elif trouble.kind is Trouble.DRAINED:
            life.ended_by = trouble
            self._loop.start(life.process, life.drain())
        else:
            self._kill(life, trouble)

    def _freeze(self, life: NodeLife, seconds: float) -> None:
        self._loop.stop_process(life.process)

        def thaw() -> None:
            if life not in self._dead:
                self.ledger.note("thawed", life.name)
                self._loop.continue_process(life.process)

        self._loop.outside(seconds, thaw)

    def _kill(self, life: NodeLife, trouble: NodeTrouble) -> None:
        life.die()
        self._dead.append(life)
        self._died[trouble.node].set_result(trouble)
        held = self.holdings.leases_of(NodeId(life.name))
        free_after_s = NOTICED_S if self.scenario.shared_disk else self.lease_s
        free_at = self._loop.time() + free_after_s
        why = f"of {life.name}, killed at {self._loop.time():.3f}, is not taken over"
        self._notice(life)
        self._loop.outside(free_after_s + TAKEOVER_S, lambda: self.holdings.require_taken(held, free_at, why))

    def _notice(self, life: NodeLife) -> None:
        """On one machine, whoever started the nodes sees that one has ended."""
        if self.scenario.shared_disk:
            self._loop.outside(NOTICED_S, lambda: self._give_back(life))

    def _give_back(self, life: NodeLife) -> None:
        node = NodeId(life.name)
        leases = self._shared_queue.leases_of(node)
        self.ledger.note("noticed", life.name)
        self._loop.create_task(self._shared_queue.release(node, leases), name="give back")

    def _released(self, node: NodeId, leases: Sequence[Lease]) -> None:
        """A node, or someone for it, has given these back: they are another's at once."""
        now = self._loop.time()
        if all(life.name != node for life in self._dead):
            self.records.released.update({(each.shard.number, each.epoch): now for each in leases})
        why = f"given back by {node} at {now:.3f}, is not taken over"
        self._loop.outside(HANDOVER_S, lambda: self.holdings.require_taken(leases, now, why))

    # The end

    def _finalise(self) -> None:
        output, errors = self._folder / "output.jsonl", self._folder / "errors.jsonl"
        base = self.scenario.base
        try:
            self._truth.write(shards_of(base), output, errors)
        except DispatcherError as error:
            self.ledger.breach(f"no output can be made: {error}")
            return
        spoilt = {index: sum(each.spoilt[index] for each in self._servers) for index in range(base.job.rows)}
        times = 1 + len(self.scenario.troubles) * len(self.scenario.starts)
        self._outcomes = check_outcomes(base, self.ledger, spoilt, (output, errors), times)

    def _make_report(self) -> Report:
        ledger = self.ledger
        found = {"redone": self.records.redone, "stale": self.records.stale}
        return Report(
            self.scenario.base.seed,
            tuple(ledger.breaches),
            tuple(ledger.latest),
            ledger.digest,
            self._virtual_s,
            ledger.events,
            dict(sorted({**ledger.counts, **found}.items())),
            self._outcomes,
        )

    def _let_the_dead_go(self, runner: asyncio.Runner) -> None:
        """Take apart what was killed, now that nothing it does can matter."""

        async def clear() -> None:
            for life in self._dead:
                self._loop.continue_process(life.process)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for _ in range(CANCELS_MAX):
                for task in others:
                    task.cancel()
                _, others = await asyncio.wait(others, timeout=3600.0) if others else ((), set())
                if not others:
                    return

        runner.run(clear())


def nodes_deadline_s(scenario: NodesScenario) -> float:
    """Virtual seconds that a scenario may take: as for one node, and what its troubles cost.

    For each its own length, the lease time until what was held is free, a request's patience with the store,
    and half a minute; and the last node's start.
    """
    base = scenario.base
    costs_s = sum(trouble.seconds + base.lease_s + 60.0 for trouble in scenario.troubles)
    return deadline_s(base) + costs_s + max(scenario.starts)
