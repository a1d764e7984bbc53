"""Any sequence of calls, on any queue, against a model that fits on a page."""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatcher.errors import LeaseLostError
from dispatcher.model import Job, JobId, NodeId, Shard, Tally
from dispatcher.queue.memory import MemoryQueue
from dispatcher.queue.sql import open_queue

LEASE_S = 60
JOBS = [JobId("a"), JobId("b")]
NODES = st.sampled_from([NodeId("node-a"), NodeId("node-b")])
SETTINGS = settings(max_examples=15, stateful_step_count=25, deadline=None)


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
        self.queue = self.run(self.open())

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

    @rule(job_id=st.sampled_from(JOBS), counts=st.lists(st.integers(1, 4), min_size=1, max_size=4))
    def add(self, job_id, counts):
        first = len(self.model[job_id])
        shards = [Shard(n, n * 4, count, n * 40, count * 10) for n, count in enumerate(counts, first)]
        self.added(job_id)
        self.model[job_id] += [Modelled(count) for count in counts]
        self.run(self.add_shards(job_id, shards))

    @rule(node=NODES, want=st.integers(0, 12))
    def lease(self, node, want):
        leases = self.run(self.queue.lease(node, want))
        assert [(lease.job.id, lease.shard.number, lease.epoch) for lease in leases] == self.take(node, want)
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
            self.run(self.queue.settle(node, lease, Tally(lease.shard.count, 0, 1, 2)))
            self.shard(lease).settled = True
        else:
            with pytest.raises(LeaseLostError):
                self.run(self.queue.settle(node, lease, Tally()))

    @precondition(lambda self: self.given)
    @rule(data=st.data(), node=NODES)
    def renew(self, data, node):
        leases = [lease for _, lease in self.some(data)]
        lost = self.run(self.queue.renew(node, leases))
        assert lost == [lease for lease in leases if not self.holds(node, lease)]
        for lease in leases:
            if self.holds(node, lease):
                self.shard(lease).expires_at = self.clock.time + LEASE_S

    @precondition(lambda self: self.given)
    @rule(data=st.data(), node=NODES)
    def release(self, data, node):
        leases = [lease for _, lease in self.some(data)]
        self.run(self.queue.release(node, leases))
        for lease in leases:
            if self.holds(node, lease) and not self.shard(lease).settled:
                self.shard(lease).node = None

    @rule(seconds=st.sampled_from([1, 29, 30, 60]))
    def time_passes(self, seconds):
        self.clock.time += seconds

    @invariant()
    def the_depth_is_the_models(self):
        depth = self.run(self.queue.depth())
        shards = [shard for job_id in JOBS for shard in self.model[job_id]]
        now = self.clock.time
        for state, count, requests in (
            ([s.requests for s in shards if s.ready(now)], depth.shards_ready, depth.requests_ready),
            ([s.requests for s in shards if s.leased(now)], depth.shards_leased, depth.requests_leased),
            ([s.requests for s in shards if s.settled], depth.shards_settled, depth.requests_settled),
        ):
            assert (count, requests) == (len(state), sum(state))


class SqlContract(Contract):
    async def open(self):
        directory = self.stack.enter_context(tempfile.TemporaryDirectory())
        opened = open_queue(Path(directory) / "queue.db", self.clock, lease_s=LEASE_S)
        queue = await self.stack.enter_async_context(opened)
        for job_id in JOBS:
            await queue.create_job(Job(job_id), {})
            await queue.activate(job_id)
        return queue

    async def add_shards(self, job_id, shards):
        await self.queue.add_shards(job_id, shards)

    def added(self, job_id):
        pass

    def order(self):
        return JOBS

    @rule(only_failed=st.booleans(), job_id=st.sampled_from(JOBS))
    def reopen(self, job_id, only_failed):
        reopened = self.run(self.queue.reopen(job_id, only_failed=only_failed))
        settled = [n for n, shard in enumerate(self.model[job_id]) if shard.settled and not only_failed]
        assert reopened == settled
        for number in settled:
            self.model[job_id][number].settled, self.model[job_id][number].node = False, None

    @invariant()
    def the_tally_is_the_models(self):
        for job_id in JOBS:
            settled = [shard.requests for shard in self.model[job_id] if shard.settled]
            expected = Tally(sum(settled), 0, len(settled), 2 * len(settled))
            assert self.run(self.queue.tally(job_id)) == expected


class MemoryContract(Contract):
    def __init__(self):
        self.appeared = []
        super().__init__()

    async def open(self):
        return MemoryQueue(self.clock, LEASE_S)

    async def add_shards(self, job_id, shards):
        for shard in shards:
            self.queue.add(Job(job_id), shard)

    def added(self, job_id):
        """A job is as old as its oldest unbroken run of unsettled shards."""
        if all(shard.settled for shard in self.model[job_id]):
            self.appeared = [*(other for other in self.appeared if other != job_id), job_id]

    def order(self):
        return self.appeared


TestSqlQueue = SqlContract.TestCase
TestSqlQueue.settings = SETTINGS
TestMemoryQueue = MemoryContract.TestCase
TestMemoryQueue.settings = settings(SETTINGS, max_examples=60)
