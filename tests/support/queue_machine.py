"""Any sequence of calls by two nodes, on any queue, against a model that fits on a page."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher.errors import CustodyLostError, LeaseLostError, QueueUnreachableError
from dispatcher.model import Job, JobId, Lease, NodeId, Shard, Tally
from dispatcher.queue.custody import Custody
from dispatcher.queue.records import JobStatus

LEASE_S = 60


def key(lease):
    return lease.job.id, lease.shard.number, lease.epoch


JOBS = [JobId("a"), JobId("b")]
NAMES = (NodeId("node-a"), NodeId("node-b"))
NODES = st.sampled_from(NAMES)


class Clock:
    time = 1000.0

    def now(self):
        return self.time

    wall = now


@dataclass
class Modelled:
    """What is true of one shard."""

    requests: int
    node: NodeId | None = None
    epoch: int = 0
    expires_at: float = 0
    settled: bool = False

    def leased(self, now):
        return not self.settled and self.node is not None and self.expires_at > now

    def ready(self, now):
        return not self.settled and not self.leased(now)


class Contract(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.model = {job_id: [] for job_id in JOBS}
        self.given = []  # every lease there ever was, with its node
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.queues = dict(zip(NAMES, self.run(self.open()), strict=True))

    async def open(self):
        """Each node's way to the one queue."""
        raise NotImplementedError

    def run(self, call):
        return self.loop.run_until_complete(call)

    def teardown(self):
        self.run(self.stack.aclose())
        self.loop.close()

    def some(self, data):
        return data.draw(st.lists(st.sampled_from(self.given), unique_by=id, max_size=4))

    def shard(self, lease):
        return self.model[lease.job.id][lease.shard.number]

    def holds(self, node, lease):
        return (self.shard(lease).node, self.shard(lease).epoch) == (node, lease.epoch)

    def requests(self, job_id, state):
        return sum(shard.requests for shard in self.model[job_id] if state(shard, self.clock.time))

    @initialize()
    def begin(self):
        """With work: else most of the examples would lease nothing."""
        for job_id in JOBS:
            self.add(job_id, [4, 2])

    @rule(job_id=st.sampled_from(JOBS), counts=st.lists(st.integers(1, 4), min_size=1, max_size=4))
    def add(self, job_id, counts):
        first = len(self.model[job_id])
        shards = [Shard(n, n * 4, count, n * 40, count * 10) for n, count in enumerate(counts, first)]
        self.added(job_id)
        self.model[job_id] += [Modelled(count) for count in counts]
        self.run(self.add_shards(job_id, shards))

    @rule(node=NODES, want=st.integers(0, 12))
    def lease(self, node, want):
        leases = self.run(self.queues[node].lease(node, want))
        assert [key(lease) for lease in leases] == self.take(node, want)
        self.given += [(node, lease) for lease in leases]

    def take(self, node, want):
        """What the model leases."""
        taken = []
        while want > 0 and (ready := [j for j in self.order() if self.requests(j, Modelled.ready)]):
            job_id = min(ready, key=lambda job_id: self.requests(job_id, Modelled.leased))
            shards = self.model[job_id]
            number = next(n for n, shard in enumerate(shards) if shard.ready(self.clock.time))
            shards[number].node, shards[number].expires_at = node, self.clock.time + LEASE_S
            shards[number].epoch += 1
            want -= shards[number].requests
            taken.append((job_id, number, shards[number].epoch))
        return taken

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def settle(self, data):
        node, lease = data.draw(st.sampled_from(self.given))
        if self.holds(node, lease):
            self.run(self.queues[node].settle(node, lease, Tally(lease.shard.count, 0, 1, 2)))
            self.shard(lease).settled = True
        else:
            with pytest.raises(LeaseLostError):
                self.run(self.queues[node].settle(node, lease, Tally()))

    def late(self):
        """Leases that were lost, with the nodes that had them."""
        return [each for each in self.given if not self.holds(*each)]

    @precondition(late)
    @rule(data=st.data())
    def settle_late(self, data):
        node, lease = data.draw(st.sampled_from(self.late()))
        with pytest.raises(LeaseLostError):
            self.run(self.queues[node].settle(node, lease, Tally(lease.shard.count)))

    @precondition(lambda self: self.given)
    @rule(data=st.data(), node=NODES)
    def renew(self, data, node):
        leases = [lease for _, lease in self.some(data)]
        lost = self.run(self.queues[node].renew(node, leases))
        assert lost == [lease for lease in leases if not self.holds(node, lease)]
        for lease in leases:
            if self.holds(node, lease):
                self.shard(lease).expires_at = self.clock.time + LEASE_S

    @precondition(lambda self: self.given)
    @rule(data=st.data(), node=NODES)
    def release(self, data, node):
        leases = [lease for _, lease in self.some(data)]
        self.run(self.queues[node].release(node, leases))
        for lease in leases:
            if self.holds(node, lease) and not self.shard(lease).settled:
                self.shard(lease).node = None

    @rule(seconds=st.sampled_from([1, 30, 60]))
    def time_passes(self, seconds):
        self.clock.time += seconds

    @invariant()
    def the_depth_is_the_models(self):
        depth = self.run(self.queues[NAMES[-1]].depth())
        shards = [shard for job_id in JOBS for shard in self.model[job_id]]
        now = self.clock.time
        for state, count, requests in (
            ([s.requests for s in shards if s.ready(now)], depth.shards_ready, depth.requests_ready),
            ([s.requests for s in shards if s.leased(now)], depth.shards_leased, depth.requests_leased),
            ([s.requests for s in shards if s.settled], depth.shards_settled, depth.requests_settled),
        ):
            assert (count, requests) == (len(state), sum(state))


class Forgetful:
    """A database that loses its answer to a commit, or the commit itself, when it is told to."""

    def __init__(self, database):
        self._database = database
        self.loses = None

    @asynccontextmanager
    async def write(self):
        loses, self.loses = self.loses, None
        async with self._database.write() as connection:
            yield connection
            if loses == "request":
                raise QueueUnreachableError("lost on the way there")
        if loses == "answer":
            raise QueueUnreachableError("lost on the way back")

    def __getattr__(self, name):
        return getattr(self._database, name)


class SqlContract(Contract):
    """Two nodes, each with connections of its own, and now and then an answer that is lost.

    `open_queues` gives two SqlQueues on one database.
    """

    def __init__(self):
        self.doubtful = {node: {} for node in NAMES}
        super().__init__()

    async def open(self):
        queues = await self.open_queues()
        for queue in queues:
            queue._database = Forgetful(queue._database)
        for job_id in JOBS:
            await queues[0].create_job(Job(job_id), {})
            await queues[0].activate(job_id)
        return queues

    async def add_shards(self, job_id, shards):
        await self.queues[NAMES[0]].add_shards(job_id, shards)

    def added(self, job_id):
        pass

    def order(self):
        return JOBS

    def take(self, node, want):
        taken = self.found(node) or super().take(node, want)
        self.doubtful[node] = {}
        return taken

    def found(self, node):
        """Of the leases whose answer was lost, those that are still the node's; they are prolonged."""
        found = [each for each, lease in self.doubtful[node].items() if self.holds(node, lease)]
        for job_id, number, _ in found:
            self.model[job_id][number].expires_at = self.clock.time + LEASE_S
        return found

    @rule(node=NODES, want=st.integers(1, 12), loses=st.sampled_from(["request", "answer"]))
    def lease_without_an_answer(self, node, want, loses):
        before = {job_id: [replace(shard) for shard in self.model[job_id]] for job_id in JOBS}
        queue = self.queues[node]
        queue._database.loses = loses
        with pytest.raises(QueueUnreachableError):
            self.run(queue.lease(node, want))
        doubtful = dict(self.doubtful[node])
        if not self.found(node):
            taken = Contract.take(self, node, want)
            doubtful |= {each: made(each) for each in taken}
        self.doubtful[node] = doubtful
        if loses == "request":
            self.model = before

    @precondition(lambda self: self.given)
    @rule(data=st.data(), loses=st.sampled_from(["request", "answer"]))
    def settle_again_after_no_answer(self, data, loses):
        node, lease = data.draw(st.sampled_from(self.given))
        if self.holds(node, lease) and not self.shard(lease).settled:
            self.queues[node]._database.loses = loses
            tally = Tally(lease.shard.count, 0, 1, 2)
            with pytest.raises(QueueUnreachableError):
                self.run(self.queues[node].settle(node, lease, tally))
            self.run(self.queues[node].settle(node, lease, tally))
            self.shard(lease).settled = True

    @rule(node=NODES)
    def go(self, node):
        """The node ends in order, and another one of the same name comes in."""
        self.run(self.queues[node].nodes.remove(node))
        for shard in [shard for job_id in JOBS for shard in self.model[job_id]]:
            if shard.node == node and not shard.settled:
                shard.node = None

    @rule(only_failed=st.booleans(), job_id=st.sampled_from(JOBS), node=NODES)
    def reopen(self, job_id, only_failed, node):
        reopened = self.run(self.queues[node].reopen(job_id, only_failed=only_failed))
        settled = [n for n, shard in enumerate(self.model[job_id]) if shard.settled and not only_failed]
        assert reopened == settled
        for number in settled:
            self.model[job_id][number].settled, self.model[job_id][number].node = False, None

    @invariant()
    def the_tally_is_the_models(self):
        for job_id in JOBS:
            settled = [shard.requests for shard in self.model[job_id] if shard.settled]
            expected = Tally(sum(settled), 0, len(settled), 2 * len(settled))
            assert self.run(self.queues[NAMES[0]].tally(job_id)) == expected


def made(each):
    """A lease by its key, as far as the model looks at it."""
    job_id, number, epoch = each
    return Lease(Job(job_id), Shard(number, 0, 1, 0, 1), epoch)


@dataclass
class ModelledJob:
    """What is true of the custody of one job."""

    wanted: bool = True
    node: NodeId | None = None
    epoch: int = 0
    expires_at: float = field(default=0.0)

    def free(self, now):
        return self.wanted and (self.node is None or self.expires_at <= now)


class CustodyContract(RuleBasedStateMachine):
    """Two nodes that take jobs, keep them, lose them and end them."""

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.model = {job_id: ModelledJob() for job_id in JOBS}
        self.given = []
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.queues = dict(zip(NAMES, self.run(self.open()), strict=True))

    run, teardown, some = Contract.run, Contract.teardown, Contract.some

    async def open(self):
        queues = await self.open_queues()
        for job_id in JOBS:
            self.clock.time += 1
            await queues[0].create_job(Job(job_id), {})
        return queues

    def holds(self, custody):
        job = self.model[custody.job_id]
        return (job.node, job.epoch) == (custody.node, custody.epoch)

    def taken(self, node, job_id):
        job = self.model[job_id]
        job.node, job.epoch, job.expires_at = node, job.epoch + 1, self.clock.time + LEASE_S
        return Custody(job_id, node, job.epoch)

    @rule(node=NODES, job_id=st.sampled_from(JOBS))
    def take(self, node, job_id):
        job = self.model[job_id]
        got = self.run(self.queues[node].custody.take(node, job_id))
        may = job.free(self.clock.time) or (job.wanted and job.node == node)
        assert got == (self.taken(node, job_id) if may else None)
        self.given += [got] if got else []

    @rule(node=NODES, want=st.integers(0, 3))
    def take_free(self, node, want):
        free = [job_id for job_id in JOBS if self.model[job_id].free(self.clock.time)][:want]
        got = self.run(self.queues[node].custody.take_free(node, want))
        assert got == [self.taken(node, job_id) for job_id in free]
        self.given += got

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def renew(self, data):
        held = self.some(data)
        lost = self.run(self.queues[NAMES[0]].custody.renew(held))
        assert lost == [each for each in held if not self.holds(each)]
        for each in held:
            if self.holds(each):
                self.model[each.job_id].expires_at = self.clock.time + LEASE_S

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def release(self, data):
        held = self.some(data)
        self.run(self.queues[NAMES[0]].custody.release(held))
        for each in held:
            if self.holds(each):
                self.model[each.job_id].node = None

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def act(self, data):
        """Whoever has lost custody moves nothing."""
        held = data.draw(st.sampled_from(self.given))
        keeping = self.queues[held.node].keeping
        act = keeping.move(held.job_id, JobStatus.ACTIVE, {"by": held.epoch}, held=held)
        if self.holds(held):
            self.run(act)
        else:
            with pytest.raises(CustodyLostError):
                self.run(act)

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def retire(self, data):
        held = data.draw(st.sampled_from(self.given))
        retire = self.queues[held.node].custody.retire(held)
        if self.holds(held):
            self.run(retire)
            self.model[held.job_id].wanted = False
        else:
            with pytest.raises(CustodyLostError):
                self.run(retire)

    @rule(job_id=st.sampled_from(JOBS), node=NODES)
    def offer(self, job_id, node):
        self.run(self.queues[node].keeping.move(job_id, JobStatus.PREPARING, {}, wanted=True))
        if not self.model[job_id].wanted:
            self.model[job_id].wanted, self.model[job_id].node = True, None

    @rule(node=NODES)
    def go(self, node):
        self.run(self.queues[node].nodes.remove(node))
        for job in self.model.values():
            if job.node == node:
                job.node = None

    @rule(seconds=st.sampled_from([1, 30, 60]))
    def time_passes(self, seconds):
        self.clock.time += seconds

    @invariant()
    def the_holders_are_the_models(self):
        now = self.clock.time
        held = {k: job.node for k, job in self.model.items() if job.wanted and not job.free(now)}
        assert self.run(self.queues[NAMES[-1]].custody.holders()) == held
