"""One dispatcher in a simulation: the real node, pool and journal on simulated ports."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from prometheus_client import CollectorRegistry

from dispatcher.config import Config
from dispatcher.dispatch.attempt import Attempt
from dispatcher.dispatch.ceiling import Ceiling
from dispatcher.dispatch.desk import Desk
from dispatcher.dispatch.node import Node
from dispatcher.dispatch.waiting import Waiting
from dispatcher.dispatch.window import WINDOW_MIN
from dispatcher.dispatch.world import World
from dispatcher.model import Lease, NodeId, Request, ServerId, ServerSpec
from dispatcher.pool.monitor import Monitor
from dispatcher.pool.pool import Pool
from dispatcher.pool.states import State
from dispatcher.ports import Clock, Queue, Recorder
from dispatcher.results.recorder import JournalRecorder
from dispatcher.telemetry.metrics import Metrics
from dispatcher.testing.simulation.disk import SimulatedDisk
from dispatcher.testing.simulation.ledger import Ledger, NodeWitness
from dispatcher.testing.simulation.queues import LinkedQueue
from dispatcher.testing.simulation.rows import Rows
from dispatcher.testing.simulation.servers import SimulatedServer
from dispatcher.testing.simulation.virtual_loop import VirtualClock
from dispatcher.testing.simulation.world import SimulatedProber, SimulatedTransport
from dispatcher.vllm.verdicts import judge

OPEN_MAX = 20_000
WRITE_INTERVAL_S = 0.1
"""Between two writes of the journal: ten times more than it is, so that ten times more is lost by kill -9."""
READ_S = 0.002
"""What reading a shard takes."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all dispatchers of one simulation share."""

    config: Config
    rows: Rows
    servers: Mapping[ServerId, SimulatedServer]
    specs: Sequence[ServerSpec]
    queue: Queue
    journals: Path
    clock: VirtualClock
    ledger: Ledger
    queue_down: Callable[[], bool]
    disk_full: Callable[[], bool]


class CheckedDesk(Desk):
    """A desk whose every assignment is held to the promises, at the moment it is made."""

    ledger: Ledger
    witness: NodeWitness
    pool: Pool
    held_max = WINDOW_MIN
    """The widest window so far: rows beyond it may be held for one more shard only."""

    def look_everywhere(self) -> None:
        """See Desk."""
        super().look_everywhere()
        self.held_max = max(self.held_max, self._window.size)

    def assign(self) -> Iterator[Attempt]:
        """See Desk."""
        for attempt in super().assign():
            self._check(attempt)
            yield attempt

    def _check(self, attempt: Attempt) -> None:
        server, now, require = attempt.server, self._now(), self.ledger.require
        permits = server.limit.permits(now)
        fixed = server.spec.limit
        require(server.in_flight <= permits, f"{server.spec.id} holds {server.in_flight} of {permits}")
        require(fixed is None or server.in_flight <= fixed, f"{server.spec.id} is over its fixed limit")
        require(server.state is State.ACTIVE, f"{server.spec.id} was given a row while {server.state}")
        worked_at = self.witness.canaries.get(server.spec.id, float("-inf"))
        if server.machine.history[-1].before is State.SUSPECT:  # an answer that came meanwhile will do
            worked_at = max(worked_at, self.witness.answers.get(server.spec.id, float("-inf")))
        in_time = worked_at > server.admitted_at - 2 * CANARY_S_MAX
        require(in_time, f"{server.spec.id} was admitted without a canary")


CANARY_S_MAX = 60.0
"""Between a canary's return and the admission it leads to, at most."""


class Life:
    """A dispatcher. Run it with `live`; `kill` it at any event."""

    def __init__(self, name: str, around: Surroundings, random: Random) -> None:
        self.name = name
        self.killed = False
        self.witness = NodeWitness(name, around.ledger)
        self.disk = SimulatedDisk(name, around.ledger, around.disk_full)
        self._around = around
        self._queue = LinkedQueue(around.queue, around.ledger, around.queue_down)
        self._metrics = Metrics(CollectorRegistry())
        self._pool = Pool(around.config.pool, self._metrics, around.clock.now, random)
        self._node: Node | None = None

    async def live(self) -> None:
        """Work until the queue is drained, or until `drain` or the task's cancellation ends it."""
        around = self._around
        prober = SimulatedProber(around.servers, self.witness, around.config.pool.probe_timeout_s)
        async with asyncio.TaskGroup() as tasks:
            monitor = Monitor(self._pool, prober, around.clock, self._metrics, tasks)
            monitor.watch(around.specs)
            inspector = tasks.create_task(self._inspect(), name="inspector")
            try:
                async with self._recorder() as recorder:
                    self._node = self._make_node(recorder, monitor)
                    await self._node.run(until_drained=True)
            finally:
                monitor.stop()
                inspector.cancel()
        self._look_back()

    def kill(self) -> None:
        """From now on nothing that it does reaches disk or queue. Cancel its task as well."""
        self.killed = self.disk.dead = self._queue.dead = True

    async def drain(self) -> None:
        """As SIGTERM does."""
        if self._node is not None:
            await self._node.drain()

    def _recorder(self) -> JournalRecorder:
        around = self._around
        return JournalRecorder(
            around.journals, CoarseClock(around.clock), sync_s=around.config.results.sync_s, disk=self.disk
        )

    def _make_node(self, recorder: Recorder, monitor: Monitor) -> Node:
        around, config = self._around, self._around.config
        transport = SimulatedTransport(around.servers, around.rows, self.witness)
        payloads = SimulatedPayloads(around.rows, self.witness)
        world = World(self._queue, payloads, recorder, transport, around.clock, self._metrics)
        desk = CheckedDesk(
            self._pool, judge, config.dispatch, Ceiling(OPEN_MAX), self._metrics, around.clock.now
        )
        desk.ledger, desk.witness, desk.pool = around.ledger, self.witness, self._pool
        waiting = Waiting(config.pool.wait_for_servers_s)
        return Node(NodeId(self.name), world, desk, monitor, config.dispatch, config.queue, waiting)

    async def _inspect(self) -> None:
        """Memory is bounded: the node never holds more rows than its window and one shard.

        Where leases were lost and taken again, the old ones' open requests count beside the new ones.
        """
        while True:
            await self._around.clock.sleep(1.0)
            if self._node is not None:
                self._inspect_node(self._node)

    def _inspect_node(self, node: Node) -> None:
        windows = 2 if self._around.ledger.counts["lease_lost"] else 1  # taken again before the old ones end
        inspect_node(self.name, node, windows, self._around.config.queue.shard_size, self._around.ledger)

    def _look_back(self) -> None:
        look_back(self.witness, self._pool, self._node, self._around.ledger)


def inspect_node(name: str, node: Node, windows: int, shard_size: int, ledger: Ledger) -> None:
    """Hold a node to its window: it has no more rows than so many of them, and one shard."""
    assert isinstance(node.desk, CheckedDesk), "it was given one"
    copies = sum(attempt.is_copy for attempt in node.desk.open_attempts())
    held = len(node.desk.backlog) + node.desk.in_flight - copies
    bound = windows * node.desk.held_max + shard_size
    ledger.require(held <= bound, f"{name} holds {held} rows, more than {bound}")


def look_back(witness: NodeWitness, pool: Pool, node: Node | None, ledger: Ledger) -> None:
    """At its end a node has given everything back."""
    require, name = ledger.require, witness.name
    require(not any(witness.open.values()), f"{name} left requests open: {witness.open}")
    for server in pool.servers.values():
        require(server.in_flight == 0, f"{server.spec.id}: {server.in_flight} permits never came back")
    if node is not None:
        require(node.desk.in_flight == 0, f"{name} counts {node.desk.in_flight} in flight after its end")


class CoarseClock:
    """A clock that rounds short sleeps up: the journal's writer looks around 100 times a second otherwise."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> float:
        """See Clock."""
        return self._clock.now()

    def wall(self) -> float:
        """See Clock."""
        return self._clock.wall()

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await self._clock.sleep(max(seconds, WRITE_INTERVAL_S))


class SimulatedPayloads:
    """`ports.Payloads` made from the seed."""

    def __init__(self, rows: Rows, witness: NodeWitness) -> None:
        self._rows = rows
        self._witness = witness

    async def read(self, lease: Lease) -> Sequence[Request]:
        """See Payloads."""
        await asyncio.sleep(READ_S)
        first, count = lease.shard.first_index, lease.shard.count
        self._witness.opened(range(first, first + count))
        return [self._rows.request(index) for index in range(first, first + count)]
