import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from random import Random

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from virtual_loop import VirtualLoop

from dispatcher.config import DispatchSettings, PoolSettings, QueueSettings
from dispatcher.dispatch.ceiling import Ceiling
from dispatcher.dispatch.desk import Desk
from dispatcher.dispatch.item import Item
from dispatcher.dispatch.node import Node
from dispatcher.dispatch.waiting import Waiting
from dispatcher.dispatch.world import World
from dispatcher.errors import LeaseLostError, StorageError
from dispatcher.model import (
    NO_TOKENS,
    Answer,
    Break,
    BreakKind,
    CanaryFault,
    CanaryReport,
    ErrorCode,
    Health,
    Job,
    JobId,
    Judgement,
    Lease,
    NodeId,
    Outcome,
    ProbeReport,
    Request,
    ServerId,
    ServerSpec,
    Shard,
    Tally,
    Telemetry,
    Verdict,
)
from dispatcher.pool.monitor import Monitor
from dispatcher.pool.pool import Pool
from dispatcher.ports import Recorded, Replay
from dispatcher.queue.memory import MemoryQueue
from dispatcher.telemetry.metrics import Metrics

JOB = Job(JobId("job"))
BREAKS = {
    BreakKind.LOCAL: Verdict.LOCAL_FAULT,
    BreakKind.OFFLINE: Verdict.LOCAL_FAULT,
    BreakKind.AWAY: Verdict.LOCAL_FAULT,
    BreakKind.STALE: Verdict.STALE_CONNECTION,
    BreakKind.TIMED_OUT: Verdict.DOUBTFUL,
    BreakKind.SILENT: Verdict.DOUBTFUL,
}


def pytest_asyncio_loop_factories(config, item):
    return {"virtual": VirtualLoop}


def now():
    return asyncio.get_running_loop().time()


class LoopClock:
    def now(self):
        return now()

    def wall(self):
        return now()

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)


def judge(ending, request, models, *, healthy=None):
    """A judge that knows a few statuses; the real one is tested where it lives."""
    if isinstance(ending, Break):
        verdict = BREAKS.get(ending.kind, Verdict.SERVER_FAULT)
        hard, broken = ending.kind is BreakKind.REFUSED, ending.kind is BreakKind.RESET
        code = ErrorCode.TIMEOUT if ending.kind is BreakKind.SILENT else ErrorCode.SERVER_ERROR
        return Judgement(verdict, code, ending.kind.value, hard=hard, broken=broken)
    if ending.status == 200:
        return Judgement(Verdict.SUCCESS, body=ending.body, status=200)
    unavailable = Verdict.OVERLOAD if healthy else Verdict.SERVER_FAULT
    verdict, code = {
        400: (Verdict.REQUEST_FAULT, ErrorCode.INVALID_REQUEST),
        404: (Verdict.MISMATCH, ErrorCode.MODEL_NOT_FOUND),
        503: (unavailable, ErrorCode.SERVER_ERROR),
    }.get(ending.status, (Verdict.DOUBTFUL, ErrorCode.SERVER_ERROR))
    hard = ending.status == 503 and healthy is False
    return Judgement(verdict, code, f"HTTP {ending.status}", status=ending.status, hard=hard)


def make_request(index, model="m", size=2):
    return Request(index, f"row-{index}", "/v1/chat/completions", model, b"x" * size)


def make_lease(number=0, count=4, *, epoch=1, job=JOB):
    return Lease(job, Shard(number, number * count, count, 0, 0), epoch)


def make_item(index=0, *, model="m", job=JOB, order=None):
    return Item(make_request(index, model), make_lease(job=job), index if order is None else order)


class FakeServer:
    """One server of the world. `ending` may be an Ending, or a function of the request."""

    def __init__(self):
        self.takes_s = 1.0
        self.ending = Answer(200, b"{}")
        self.health = Health.UP
        self.canary = CanaryReport()
        self.models = None
        self.deaf = False
        """Hung: requests and canaries get no answer, and health is fine."""
        self.silent_to = frozenset()
        """Rows that it never answers."""
        self.counts_tokens = False
        self.deadly = frozenset()
        """Rows that kill it; it is back after two seconds."""
        self.sent = []
        self.open = 0
        self.probes = 0
        self._died = asyncio.Event()

    @property
    def alive(self):
        return not self._died.is_set()

    def die(self):
        self._died.set()

    def revive(self):
        self._died = asyncio.Event()

    async def serve(self, request):
        self.sent.append((now(), request.index))
        if not self.alive:
            return Break(BreakKind.REFUSED)
        if request.index in self.deadly:
            asyncio.get_running_loop().call_later(0.2, self.die)
            asyncio.get_running_loop().call_later(2.2, self.revive)
        self.open += 1
        try:
            silent = self.deaf or request.index in self.silent_to
            async with asyncio.timeout(None if silent else self.takes_s):
                await self._died.wait()
            return Break(BreakKind.RESET)
        except TimeoutError:
            return self.ending(request) if callable(self.ending) else self.ending
        finally:
            self.open -= 1


class Network:
    """`Transport` and `Prober` onto the fake servers."""

    def __init__(self):
        self.servers = defaultdict(FakeServer)
        self.request_ids = []
        self.open_most = 0

    async def send(self, server, request, request_id, timeout_s):
        self.request_ids.append(request_id)
        self.open_most = max(self.open_most, 1 + sum(fake.open for fake in self.servers.values()))
        try:
            async with asyncio.timeout(timeout_s):
                return await self.servers[server.id].serve(request)
        except TimeoutError:
            return Break(BreakKind.TIMED_OUT)

    async def probe(self, server):
        fake = self.servers[server.id]
        fake.probes += 1
        await asyncio.sleep(0.01)
        return ProbeReport(fake.health if fake.alive else Health.REFUSED, models=fake.models)

    inspect = probe

    async def canary(self, server, _model, _known=None):
        fake = self.servers[server.id]
        if fake.deaf:
            await asyncio.sleep(10)
            return CanaryReport(CanaryFault.SLOW, "no answer in time")
        return fake.canary if fake.alive else CanaryReport(CanaryFault.DEAD, "refused")

    async def scrape(self, server, _timeout_s=None):
        fake = self.servers[server.id]
        return Telemetry(generation_tokens_total=float(len(fake.sent))) if fake.counts_tokens else None

    def sends(self):
        return sorted(send for server in self.servers.values() for send in server.sent)


class FlakyQueue(MemoryQueue):
    """A queue whose database can be out of reach, and whose leases can be taken away."""

    def __init__(self, clock, lease_s):
        super().__init__(clock, lease_s)
        self.broken = False
        self.calls = []
        self.stolen = set()
        self.paused = set()

    def _reach(self, call):
        self.calls.append((now(), call))
        if self.broken:
            raise StorageError("the database is out of reach")

    async def lease(self, node, want, without=()):
        await asyncio.sleep(0.001)
        self._reach("lease")
        return await super().lease(node, want, {*without, *self.paused})

    async def renew(self, node, leases):
        await asyncio.sleep(0.001)
        self._reach("renew")
        return [*await super().renew(node, leases), *(lease for lease in leases if lease in self.stolen)]

    async def settle(self, node, lease, tally):
        await asyncio.sleep(0.001)
        self._reach("settle")
        if lease in self.stolen:
            raise LeaseLostError("taken over")
        await super().settle(node, lease, tally)

    async def release(self, node, leases):
        await asyncio.sleep(0.001)
        self._reach("release")
        await super().release(node, [lease for lease in leases if lease not in self.stolen])

    async def depth(self):
        self._reach("depth")
        return await super().depth()


class FakeRecorder:
    """Outcomes are durable `takes_s` after they were appended; a shard is open once at a time."""

    def __init__(self):
        self.takes_s = 0.2
        self.obstacle = None
        self.outcomes = defaultdict(list)
        self.opened = {}
        self.hastened = []
        self.finished_before = frozenset()
        self.grudges = {}
        self._pending = []
        self._durable = []
        self._news = asyncio.Event()

    async def open(self, lease, requests):
        await asyncio.sleep(0.001)
        assert lease.shard.number not in self.opened, "a shard is open once at a time"
        self.opened[lease.shard.number] = lease
        known = self.finished_before | self.outcomes.keys()
        done = known & {request.index for request in requests}
        return Replay(frozenset(done), Tally(succeeded=len(done)), self.grudges)

    def remember(self, lease, index, grudge):
        assert self.opened[lease.shard.number] == lease
        self.grudges[index] = grudge

    def append(self, lease, outcome):
        assert self.opened[lease.shard.number] == lease
        self.outcomes[outcome.index].append(outcome)
        self._pending.append(lease)
        asyncio.get_running_loop().call_later(self.takes_s, self._recorded, lease)

    def _recorded(self, lease):
        if self.obstacle is not None:
            asyncio.get_running_loop().call_later(1.0, self._recorded, lease)
            return
        self._pending.remove(lease)
        self._durable.append(Recorded(lease, 1))
        self._news.set()

    async def recorded(self):
        await self._news.wait()
        self._news.clear()
        durable, self._durable = self._durable, []
        return durable

    def hasten(self, lease):
        self.hastened.append(lease.shard.number)

    async def close(self, lease):
        while self.opened.get(lease.shard.number) in self._pending:  # noqa: ASYNC110  # time is virtual
            await asyncio.sleep(0.01)
        self.opened.pop(lease.shard.number, None)


class Payloads:
    def __init__(self):
        self.model_of = lambda _index: "m"
        self.withheld = {}

    async def read(self, lease):
        await asyncio.sleep(0.001)
        first, count = lease.shard.first_index, lease.shard.count
        requests = [make_request(index, self.model_of(index)) for index in range(first, first + count)]
        return [replace(request, withheld=self.withheld.get(request.index)) for request in requests]


@dataclass
class Scene:
    """What a node is put into."""

    rows: int = 20
    shard_size: int = 4
    servers: tuple = ("a", "b")
    ceiling: int = 10_000
    lease_s: float = 60.0
    wait_for_servers_s: float | None = None
    pool: dict = field(default_factory=dict)
    tracer: object = None
    log_prompts: bool = False


class Bench:
    """A node at work in a world of fakes."""

    def __init__(self, tasks, scene, dispatch):
        self.registry, self.rows, clock = CollectorRegistry(), scene.rows, LoopClock()
        self.metrics = Metrics(self.registry)
        self.network, self.recorder, self.payloads = Network(), FakeRecorder(), Payloads()
        self.queue = FlakyQueue(clock, scene.lease_s)
        job = Job(JobId("job"), **dispatch.pop("job", {}))
        for number, first in enumerate(range(0, scene.rows, scene.shard_size)):
            self.queue.add(job, Shard(number, first, min(scene.shard_size, scene.rows - first), 0, 0))
        self.pool = Pool(PoolSettings(**{"limit": 16, **scene.pool}), self.metrics, now, Random(1))
        self.monitor = Monitor(self.pool, self.network, clock, self.metrics, tasks)
        settings = DispatchSettings(**dispatch)
        self.desk = Desk(self.pool, judge, settings, Ceiling(scene.ceiling), self.metrics, now)
        ports = (self.queue, self.payloads, self.recorder, self.network, clock, self.metrics)
        world = World(*ports, tracer=scene.tracer, log_prompts=scene.log_prompts)
        waiting = Waiting(scene.wait_for_servers_s)
        queue = QueueSettings(lease_s=scene.lease_s)
        self.node = Node(NodeId("node"), world, self.desk, self.monitor, settings, queue, waiting)
        self.watch(*scene.servers)

    def watch(self, *names):
        self.monitor.watch([ServerSpec(ServerId(name), name) for name in names])

    def server(self, name):
        return self.network.servers[ServerId(name)]

    def state(self, name):
        return self.pool.servers[ServerId(name)].state

    async def run(self, *, until_drained=True):
        await self.node.run(until_drained=until_drained)

    def hindrance(self, part):
        """What the metrics tell of it."""
        return self.registry.get_sample_value("dispatcher_obstacle", {"part": part})

    def outcomes(self):
        return {index: outcomes[0] for index, outcomes in self.recorder.outcomes.items()}

    def assert_answered_once(self):
        """Every row has exactly one outcome, and a success."""
        assert {index: len(found) for index, found in self.recorder.outcomes.items()} == dict.fromkeys(
            range(self.rows), 1
        )
        assert all(outcome.ok for outcome in self.outcomes().values())
        assert self.node.progress.total.succeeded == self.rows

    async def assert_at_rest(self):
        """Nothing is held: no permit, no request, and no lease but those that are another's."""
        assert [server.in_flight for server in self.pool.servers.values()] == [0] * len(self.pool.servers)
        assert (self.desk.in_flight, self.desk.open) == (0, {})
        assert sum(server.open for server in self.network.servers.values()) == 0
        self.queue.broken = False
        assert (await self.queue.depth()).shards_leased <= len(self.queue.stolen)


@pytest.fixture
def bench():
    @asynccontextmanager
    async def bench(**settings):
        scene = Scene(**{one.name: settings.pop(one.name) for one in fields(Scene) if one.name in settings})
        before = asyncio.all_tasks()
        async with asyncio.TaskGroup() as tasks:
            made = Bench(tasks, scene, settings)
            try:
                yield made
            finally:
                made.monitor.stop()
        assert asyncio.all_tasks() == before, "nothing is left running"
        await made.assert_at_rest()

    return bench


class DeskBench:
    """A desk with a clock that the test moves."""

    def __init__(self, ceiling=10_000, review=None, **settings):
        self.time = 100.0
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.pool = Pool(PoolSettings(limit=8), self.metrics, lambda: self.time, Random(1))
        self.ceiling = Ceiling(ceiling)
        self.tokens = NO_TOKENS
        """What every answer from now on says that it cost."""
        self.desk = Desk(
            self.pool,
            lambda *asked, healthy=None: replace(judge(*asked, healthy=healthy), tokens=self.tokens),
            DispatchSettings(**settings),
            self.ceiling,
            self.metrics,
            lambda: self.time,
            review,
        )

    def admit(self, *names, models=None, limit=None):
        known = [server.spec for server in self.pool.servers.values()]
        joined = self.pool.set_members(
            [*known, *(ServerSpec(ServerId(name), name, limit=limit) for name in names)]
        )
        report = ProbeReport(Health.UP, models=models)
        for server in joined:
            self.pool.probed(server, report)
            self.pool.examined(server, report, CanaryReport())
        self.desk.look_everywhere()
        return joined

    def admit_shard(
        self, number=0, count=4, *, model="m", size=2, finished=frozenset(), grudges=None, epoch=1
    ):
        lease = make_lease(number, count, epoch=epoch)
        first = lease.shard.first_index
        requests = [make_request(index, model, size) for index in range(first, first + count)]
        replay = Replay(finished, Tally(succeeded=len(finished)), grudges or {})
        self.desk.admit(lease, requests, replay)
        return lease

    def send(self):
        return list(self.desk.assign())

    def sent(self):
        return [(attempt.server.spec.id, attempt.item.request.index) for attempt in self.send()]

    def end(self, attempt, ending=Answer(200, b"{}"), healthy=None):  # noqa: B008  # it is frozen
        """The attempt ended; an outcome goes to the recorder at once."""
        self.desk.release(attempt)
        ended = self.desk.attempt_ended(attempt, ending, healthy=healthy)
        if ended.outcome is not None:
            self.desk.appended(attempt.item.lease, ended.outcome)
        return ended


@pytest.fixture
def make_desk():
    return DeskBench


@pytest.fixture
def make():
    """What the tests are made of."""

    class Make:
        job = JOB
        request = staticmethod(make_request)
        lease = staticmethod(make_lease)
        item = staticmethod(make_item)

        @staticmethod
        def outcome(index, code=None, **fields):
            return Outcome(index, f"row-{index}", code, **fields)

    return Make
