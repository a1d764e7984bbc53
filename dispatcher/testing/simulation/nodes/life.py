"""One node in a simulation of several: the real one, on a machine with a disk and connections of its own."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from prometheus_client import CollectorRegistry

from dispatcher.config import Config
from dispatcher.dispatch.ceiling import Ceiling
from dispatcher.dispatch.node import Node
from dispatcher.dispatch.waiting import Waiting
from dispatcher.dispatch.world import World
from dispatcher.errors import QueueError, UnavailableError
from dispatcher.model import JobId, NodeId, ServerId, ServerSpec, Tally
from dispatcher.pool.monitor import Monitor
from dispatcher.pool.pool import Pool
from dispatcher.ports import Recorder
from dispatcher.queue.tenure import Tenure
from dispatcher.results.checkpointed import CheckpointedRecorder
from dispatcher.results.copies import Copies
from dispatcher.results.recorder import JournalRecorder
from dispatcher.storage.patience import Patience
from dispatcher.telemetry.absences import Absences
from dispatcher.telemetry.loop_lag import measure_loop_lag
from dispatcher.telemetry.metrics import Metrics
from dispatcher.testing.simulation.disk import SimulatedDisk
from dispatcher.testing.simulation.ledger import Ledger, NodeWitness
from dispatcher.testing.simulation.life import (
    OPEN_MAX,
    CheckedDesk,
    CoarseClock,
    SimulatedPayloads,
    inspect_node,
    look_back,
)
from dispatcher.testing.simulation.nodes import queue, store
from dispatcher.testing.simulation.nodes.network import NodeConnections, NodeProber
from dispatcher.testing.simulation.nodes.processes import Process, ProcessLoop
from dispatcher.testing.simulation.nodes.queue import QueueLink, SharedQueue
from dispatcher.testing.simulation.nodes.recording import WatchedRecorder
from dispatcher.testing.simulation.nodes.records import Records
from dispatcher.testing.simulation.nodes.scenario import NodesScenario, NodeTrouble, Trouble
from dispatcher.testing.simulation.nodes.store import Objects, StoreLink
from dispatcher.testing.simulation.nodes.weather import Weather
from dispatcher.testing.simulation.nodes.wire import Wire
from dispatcher.testing.simulation.rows import Rows
from dispatcher.testing.simulation.servers import SimulatedServer
from dispatcher.testing.simulation.virtual_loop import WALL_AT_START
from dispatcher.testing.simulation.world import SimulatedProber, SimulatedTransport
from dispatcher.vllm.verdicts import judge

RETRY_S = 5.0
"""Between two tries of a shard whose journal could not be read."""
WINDOWS_MAX = 2
"""Where leases were lost and taken again, the old ones' open requests count beside the new ones."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all nodes of one simulation share."""

    scenario: NodesScenario
    config: Config
    job: JobId
    lease_s: float
    loop: ProcessLoop
    ledger: Ledger
    rows: Rows
    servers: Mapping[ServerId, SimulatedServer]
    specs: Sequence[ServerSpec]
    queue: SharedQueue
    objects: Objects
    journals: Path
    """Where the journals are, if all nodes are on one machine."""
    records: Records
    weather: Weather


class MachineClock:
    """`ports.Clock` of one machine, whose clocks are ahead of the queue's by so many seconds."""

    def __init__(self, loop: ProcessLoop, ahead_s: float) -> None:
        self._loop = loop
        self._ahead_s = ahead_s

    def now(self) -> float:
        """Monotonic seconds, from a beginning of its own."""
        return self._loop.time() + abs(self._ahead_s)

    def wall(self) -> float:
        """Seconds since the epoch, as this machine believes."""
        return self._loop.time() + WALL_AT_START + self._ahead_s

    async def sleep(self, seconds: float) -> None:
        """Sleep in virtual time."""
        await asyncio.sleep(seconds)


class NodeLife:
    """One node's process at one place, on that machine's `disk`. Run it with `live`."""

    def __init__(self, name: str, place: int, shared: Shared, disk: Path) -> None:
        self.name = name
        self.process = Process(name)
        self.ended_by: NodeTrouble | None = None
        """What asked it to end in good order."""
        self._shared = shared
        self._links = shared.weather.links[place]
        self._clock = MachineClock(shared.loop, shared.scenario.clocks_ahead[place])
        self._random = Random(f"{shared.scenario.base.seed} {name}")
        knows = lambda index: shared.records.knows_finished(name, index, self._links)  # noqa: E731
        self._witness = NodeWitness(name, shared.ledger, knows_finished=knows, now=self._clock.now)
        self._connections = NodeConnections(self._links)
        self._place = place
        self._copies = disk
        self._disk = SimulatedDisk(name, shared.ledger, lambda: False)
        self.link = QueueLink(
            shared.queue, self._wire(of_queue=True), self._clock, shared.scenario.rows_at_once
        )
        self._node: Node | None = None

    async def live(self) -> None:
        """Work until the queue is drained, or until `drain` ends it."""
        shared, absences = self._shared, Absences(self._clock.now)
        metrics = Metrics(CollectorRegistry())
        pool = Pool(shared.config.pool, metrics, self._clock.now, self._random, absences)
        prober = SimulatedProber(shared.servers, self._witness, shared.config.pool.probe_timeout_s)
        async with asyncio.TaskGroup() as tasks:
            monitor = Monitor(pool, NodeProber(prober, self._links), self._clock, metrics, tasks)
            monitor.watch(shared.specs)
            beating = measure_loop_lag(self._clock, metrics.event_loop_lagged, absences)
            tenure = Tenure(self.link, shared.lease_s, self._clock.now)
            keepers = [
                tasks.create_task(beating, name="lag"),
                tasks.create_task(self._inspect(), name="look"),
                tasks.create_task(self._try_again(tenure), name="try again"),
            ]
            try:
                async with self._recorder(tenure) as recorder:
                    self._node = self._make_node(tenure, recorder, pool, monitor, metrics)
                    await self._node.run(until_drained=True)
            finally:
                monitor.stop()
                for keeper in keepers:
                    keeper.cancel()
        look_back(self._witness, pool, self._node, shared.ledger)

    def die(self) -> None:
        """As by kill -9: nothing of it runs any more, and its connections are closed."""
        self._shared.loop.stop_process(self.process)
        self._disk.dead = True
        self._connections.hang_up()

    async def drain(self) -> None:
        """As SIGTERM does."""
        if self._node is not None:
            await self._node.drain()

    def _make_node(
        self, tenure: Tenure, recorder: Recorder, pool: Pool, monitor: Monitor, metrics: Metrics
    ) -> Node:
        shared, config, clock = self._shared, self._shared.config, self._clock
        payloads = SimulatedPayloads(shared.rows, self._witness)
        watched = WatchedRecorder(recorder, self.name, shared.records, self._links)
        transport = SimulatedTransport(shared.servers, shared.rows, self._witness, self._connections.exchange)
        world = World(tenure, payloads, watched, transport, clock, metrics)
        desk = CheckedDesk(pool, judge, config.dispatch, Ceiling(OPEN_MAX), metrics, clock.now)
        desk.ledger, desk.witness, desk.pool = shared.ledger, self._witness, pool
        waiting = Waiting(config.pool.wait_for_servers_s)
        node = Node(NodeId(self.name), world, desk, monitor, config.dispatch, config.queue, waiting)
        if not shared.scenario.shared_disk:
            node.ledger.follow(shared.job, Tally(), 0, {})
        return node

    @asynccontextmanager
    async def _recorder(self, tenure: Tenure) -> AsyncIterator[Recorder]:
        shared, clock = self._shared, CoarseClock(self._clock)
        sync_s = shared.config.results.sync_s
        if shared.scenario.shared_disk:
            async with JournalRecorder(shared.journals, clock, sync_s=sync_s, disk=self._disk) as recorder:
                yield recorder
            return
        copies = Copies(self._copies)
        inner = JournalRecorder(self._copies, clock, sync_s=sync_s, disk=self._disk, path_of=copies.path_of)
        patience = Patience("the store", self._clock, self._random)
        link = StoreLink(shared.objects, self._wire(of_queue=False), patience)
        async with CheckpointedRecorder(
            inner,
            link,
            copies,
            self._clock,
            self._random,
            left_s=tenure.left_s,
            checkpoint_s=shared.scenario.checkpoint_s,
        ) as checkpointed:
            yield checkpointed

    def _wire(self, *, of_queue: bool) -> Wire:
        if of_queue:
            return wire_to_queue(self._shared, self._place, self._random)
        return wire_to_store(self._shared, self._place, self._random)

    async def _try_again(self, tenure: Tenure) -> None:
        """As a job's keeper does with shards whose journals could not be read: the store was away."""
        while True:
            await self._clock.sleep(RETRY_S)
            if self._node is None:
                continue
            leases = self._node.ledger.to_be_tried(self._shared.job, self._clock.now() - RETRY_S)
            with suppress(QueueError):  # then they are free when they expire
                await tenure.release(NodeId(self.name), leases)

    async def _inspect(self) -> None:
        while True:
            await self._clock.sleep(1.0)
            if self._node is not None:
                size = self._shared.config.queue.shard_size
                inspect_node(self.name, self._node, WINDOWS_MAX, size, self._shared.ledger)


def wire_to_queue(shared: Shared, place: int, random: Random) -> Wire:
    """A machine's connection to the database."""
    return Wire(
        shared.weather,
        place,
        shared.loop.outside,
        random,
        queue.WAY_S,
        cut=Trouble.NO_QUEUE,
        deaf=Trouble.QUEUE_DEAF,
        lost=lambda: QueueError("the queue cannot be reached"),
    )


def wire_to_store(shared: Shared, place: int, random: Random) -> Wire:
    """A machine's connection to the store."""
    return Wire(
        shared.weather,
        place,
        shared.loop.outside,
        random,
        store.WAY_S,
        cut=Trouble.NO_STORE,
        deaf=Trouble.STORE_DEAF,
        lost=lambda: UnavailableError("the store does not answer"),
    )
