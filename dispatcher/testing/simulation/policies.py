"""Ways to spread a job over a fleet: the dispatcher itself, and what people do without it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from random import Random

from prometheus_client import CollectorRegistry

from dispatcher.config import Config
from dispatcher.dispatch.ceiling import Ceiling
from dispatcher.dispatch.desk import Desk
from dispatcher.dispatch.node import Node
from dispatcher.dispatch.waiting import Waiting
from dispatcher.dispatch.world import World
from dispatcher.ingest.sharding import TAIL_SHARDS
from dispatcher.model import Answer, Job, JobId, Lease, NodeId, Request, ServerId, ServerSpec, Shard
from dispatcher.pool.monitor import Monitor
from dispatcher.pool.pool import Pool
from dispatcher.queue.memory import MemoryQueue
from dispatcher.telemetry.metrics import Metrics
from dispatcher.testing.simulation.counting import CountingRecorder
from dispatcher.testing.simulation.rows import Rows
from dispatcher.testing.simulation.servers import SimulatedServer
from dispatcher.testing.simulation.virtual_loop import VirtualClock
from dispatcher.testing.simulation.world import SimulatedProber, SimulatedTransport, Witness
from dispatcher.vllm.verdicts import judge

SHARD_SIZE = 256
TAIL_SIZE = SHARD_SIZE // 8
"""Of a job's last shards, where several nodes share it."""
TELL_S = 0.5
"""How often nodes tell each other that they have nothing left to send."""
OPEN_MAX = 1_000_000
RETRY_S = 1.0
"""What the simple policies wait after an error before they try again."""
ERRORS_MAX = 5
"""Answers that are errors until they give a row up; a server that cannot be reached is tried for ever."""
ATTEMPT_S_MAX = 600.0
"""How long they wait for an answer: the default of OpenAI's client."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a policy is given."""

    rows: Rows
    servers: Mapping[ServerId, SimulatedServer]
    specs: Sequence[ServerSpec]
    witness: Witness
    seed: int


Policy = Callable[[Setting], Awaitable[None]]
"""Sees every row answered, or failed, and returns."""


def _nothing(_pool: Pool) -> None:
    """Nobody looks."""


async def dispatcher(setting: Setting) -> None:
    """Ours: the real node, pool and queue with their defaults."""
    await dispatch(setting, Config())


async def dispatch(setting: Setting, config: Config) -> None:
    """Ours, with these settings."""
    await _Nodes(setting, config, _nothing).run((0.0,))


def dispatchers(starts_s: Sequence[float], on_start: Callable[[Pool], None] = _nothing) -> Policy:
    """Ours, with several nodes on one queue, started at these times; `on_start` is shown each one's pool."""

    async def policy(setting: Setting) -> None:
        await _Nodes(setting, Config(), on_start).run(starts_s)

    return policy


class _Nodes:
    """One node, or several that share the queue, and tell each other when they have nothing left to send."""

    def __init__(self, setting: Setting, config: Config, on_start: Callable[[Pool], None]) -> None:
        self._setting = setting
        self._config = config
        self._on_start = on_start
        self._clock = VirtualClock(asyncio.get_running_loop())
        self._nodes: list[Node] = []

    async def run(self, starts_s: Sequence[float]) -> None:
        several = len(starts_s) > 1
        queue = _queue(self._setting.rows, self._clock, tail=several)
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._tell() if several else asyncio.sleep(0), name="tell")
            async with asyncio.TaskGroup() as nodes:
                for number, start_s in enumerate(starts_s):
                    nodes.create_task(self._live(number, start_s, queue), name=f"node {number}")
            telling.cancel()

    async def _live(self, number: int, start_s: float, queue: MemoryQueue) -> None:
        setting, config, clock = self._setting, self._config, self._clock
        if start_s:
            await clock.sleep(start_s)
        metrics = Metrics(CollectorRegistry())
        pool = Pool(config.pool, metrics, clock.now, Random(setting.seed + number))
        self._on_start(pool)
        prober = SimulatedProber(setting.servers, setting.witness, config.pool.probe_timeout_s)
        transport = SimulatedTransport(setting.servers, setting.rows, setting.witness)
        payloads, recorder = _Payloads(setting.rows), CountingRecorder()
        world = World(queue, payloads, recorder, transport, clock, metrics)
        desk = Desk(pool, judge, config.dispatch, Ceiling(OPEN_MAX), metrics, clock.now)
        async with asyncio.TaskGroup() as tasks:
            monitor = Monitor(pool, prober, clock, metrics, tasks)
            monitor.watch(setting.specs)
            name = NodeId(f"node-{number}")
            node = Node(name, world, desk, monitor, config.dispatch, config.queue, Waiting(None))
            self._nodes.append(node)
            try:
                await node.run(until_drained=True)
            finally:
                self._nodes.remove(node)
                monitor.stop()

    async def _tell(self) -> None:
        while True:
            await self._clock.sleep(TELL_S)
            hungry = [node for node in self._nodes if node.desk.is_hungry()]
            for node in self._nodes:
                node.share_out(len(hungry) - (node in hungry))


def round_robin(limit: int) -> Policy:
    """Each request to the next server in turn, with at most so many open at each."""

    async def policy(setting: Setting) -> None:
        turns = _Turns(len(setting.specs))
        await _with_workers(setting, limit * len(setting.specs), turns.next, limit)

    return policy


def least_outstanding(limit: int) -> Policy:
    """Each request to the server with the fewest open, with at most so many at each."""

    async def policy(setting: Setting) -> None:
        open_ = [0] * len(setting.specs)
        await _with_workers(
            setting, limit * len(setting.specs), lambda: open_.index(min(open_)), limit, open_
        )

    return policy


def batch_per_slot(size: int, slots: int) -> Policy:
    """Batches of so many, so many at a time at each server; a slot is held until its slowest row returns."""

    async def policy(setting: Setting) -> None:
        batches = iter(range(0, setting.rows.plan.rows, size))

        async def work(place: int) -> None:
            for first in batches:
                last = min(first + size, setting.rows.plan.rows)
                async with asyncio.TaskGroup() as batch:
                    for index in range(first, last):
                        turns = _Turns(len(setting.specs), place - 1)  # where it fails, the next one's turn
                        batch.create_task(_until_answered(setting, index, turns.next))

        async with asyncio.TaskGroup() as workers:
            for place in range(len(setting.specs)):
                for _ in range(slots):
                    workers.create_task(work(place))

    return policy


class _Turns:
    def __init__(self, count: int, last: int = -1) -> None:
        self._count = count
        self._turn = last

    def next(self) -> int:
        self._turn = (self._turn + 1) % self._count
        return self._turn


async def _with_workers(
    setting: Setting, workers: int, choose: Callable[[], int], limit: int, open_: list[int] | None = None
) -> None:
    """So many workers take row after row in order."""
    indexes = iter(range(setting.rows.plan.rows))
    permits = [asyncio.Semaphore(limit) for _ in setting.specs]
    counts = open_ if open_ is not None else [0] * len(setting.specs)

    async def work() -> None:
        for index in indexes:
            await _until_answered(setting, index, choose, permits, counts)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(workers, setting.rows.plan.rows)):
            group.create_task(work())


async def _until_answered(
    setting: Setting,
    index: int,
    choose: Callable[[], int],
    permits: Sequence[asyncio.Semaphore] = (),
    counts: list[int] | None = None,
) -> None:
    """Try until there is an answer, at the server chosen anew each time."""
    transport = SimulatedTransport(setting.servers, setting.rows, setting.witness)
    request, errors = setting.rows.request(index), 0
    while errors < ERRORS_MAX:
        place = choose()
        if counts is not None:
            counts[place] += 1
        try:
            async with permits[place] if permits else nullcontext():
                ending = await transport.send(setting.specs[place], request, "", ATTEMPT_S_MAX)
        finally:
            if counts is not None:
                counts[place] -= 1
        if isinstance(ending, Answer):
            if ending.status in (200, 400):
                return
            errors += 1
        await asyncio.sleep(RETRY_S)


class _Payloads:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def read(self, lease: Lease) -> Sequence[Request]:
        first = lease.shard.first_index
        return [self._rows.request(index) for index in range(first, first + lease.shard.count)]


def _queue(rows: Rows, clock: VirtualClock, *, tail: bool) -> MemoryQueue:
    """The job's shards; where several share it, the last ones are cut smaller, as ingest does."""
    queue, job = MemoryQueue(clock), Job(JobId("rehearsal"))
    first = number = 0
    while first < rows.plan.rows:
        left = rows.plan.rows - first
        size = TAIL_SIZE if tail and left <= (TAIL_SHARDS + 1) * SHARD_SIZE else SHARD_SIZE
        count = min(size, left)
        queue.add(job, Shard(number, first, count, first, count))
        first, number = first + count, number + 1
    queue.close()
    return queue
