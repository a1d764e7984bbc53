"""The queue of one process that keeps nothing on disk: for streams of requests."""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf

from dispatcher.errors import QueueError
from dispatcher.model import Job, JobId, Lease, NodeId, QueueDepth, Shard, Tally
from dispatcher.ports import Clock
from dispatcher.queue.bell import Bell
from dispatcher.queue.fairness import Share, Turns
from dispatcher.queue.records import lease_lost

SETTLED_REMEMBERED = 1024
"""Settled leases that can be settled again. A repeat follows at once, so older ones are forgotten."""


class MemoryQueue:
    """`ports.Queue` in memory. It holds unsettled shards only, so it does not grow with what is done.

    Shards are added at any time; `close` says that no more will come.
    """

    def __init__(self, clock: Clock, lease_s: float = 60.0) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._bell = Bell(clock)
        self._jobs: dict[JobId, _JobShards] = {}
        self._orders = count()
        self._settled: OrderedDict[tuple[JobId, int], tuple[NodeId, int]] = OrderedDict()
        self._shards_settled = 0
        self._requests_settled = 0
        self._closed = False

    def add(self, job: Job, shard: Shard) -> None:
        """Offer a shard. Raises QueueError when the queue is closed, or holds one of that number already."""
        if self._closed:
            raise QueueError(f"shard {shard.number} of job {job.id} came after the queue was closed")
        if job.id not in self._jobs:
            self._jobs[job.id] = _JobShards(job, next(self._orders))
        self._jobs[job.id].add(shard)
        self._bell.ring()

    def close(self) -> None:
        """Say that no more shards will come, and wake whoever waits for some."""
        self._closed = True
        self._bell.ring()

    async def lease(self, node: NodeId, want: int, without: Collection[JobId] = ()) -> Sequence[Lease]:
        """Take shards in the queue's order until their requests reach `want`."""
        self._free_expired()
        jobs = (shards for job_id, shards in self._jobs.items() if job_id not in without)
        turns = Turns((shards.share() for shards in jobs), want)
        leases = []
        while (job_id := turns.next()) is not None:
            lease = self._jobs[job_id].take(node, self._clock.now() + self._lease_s)
            if lease is None:
                turns.exhausted(job_id)
            else:
                turns.took(job_id, lease.shard.requests)
                leases.append(lease)
        return leases

    async def renew(self, node: NodeId, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Prolong these leases by the lease time from now; return those that are lost."""
        expires_at = self._clock.now() + self._lease_s
        return [
            lease
            for lease in leases
            if not self._renewed(node, lease, expires_at) and not self._settled_before(node, lease)
        ]

    async def settle(self, node: NodeId, lease: Lease, tally: Tally) -> None:  # noqa: ARG002 - no tally is kept
        """Forget a finished shard. Raises LeaseLostError where the lease is no longer the node's."""
        if self._settled_before(node, lease):
            return
        if self._held(node, lease) is None:
            raise lease_lost(node, lease)
        self._shards_settled += 1
        self._requests_settled += lease.shard.requests
        self._forget(lease)
        self._remember(node, lease)

    async def release(self, node: NodeId, leases: Sequence[Lease]) -> None:
        """Give shards back; those that are no longer the node's are left alone."""
        for lease in leases:
            if self._held(node, lease) is not None:
                self._jobs[lease.job.id].give_back(lease.shard.number)
        self._bell.ring()

    async def depth(self) -> QueueDepth:
        """How much is left. An expired lease counts as ready."""
        self._free_expired()
        jobs = self._jobs.values()
        shards_leased = sum(len(shards.leased) for shards in jobs)
        requests_leased = sum(shards.requests_leased for shards in jobs)
        return QueueDepth(
            shards_ready=sum(len(shards.entries) for shards in jobs) - shards_leased,
            shards_leased=shards_leased,
            shards_settled=self._shards_settled,
            requests_ready=sum(shards.requests for shards in jobs) - requests_leased,
            requests_leased=requests_leased,
            requests_settled=self._requests_settled,
        )

    async def wait(self, timeout_s: float) -> None:
        """Return when shards were added or released, or the queue was closed, or after `timeout_s`."""
        await self._bell.wait(timeout_s)

    def _free_expired(self) -> None:
        now = self._clock.now()
        for shards in self._jobs.values():
            shards.free_expired(now)

    def _held(self, node: NodeId, lease: Lease) -> "_Entry | None":
        shards = self._jobs.get(lease.job.id)
        entry = shards.entries.get(lease.shard.number) if shards else None
        held = entry is not None and (entry.holder, entry.epoch) == (node, lease.epoch)
        return entry if held else None

    def _renewed(self, node: NodeId, lease: Lease, expires_at: float) -> bool:
        entry = self._held(node, lease)
        if entry is None:
            return False
        entry.expires_at = expires_at
        self._jobs[lease.job.id].hold(lease.shard.number)  # it may have expired, but was not taken over
        return True

    def _settled_before(self, node: NodeId, lease: Lease) -> bool:
        return self._settled.get((lease.job.id, lease.shard.number)) == (node, lease.epoch)

    def _remember(self, node: NodeId, lease: Lease) -> None:
        self._settled[lease.job.id, lease.shard.number] = (node, lease.epoch)
        if len(self._settled) > SETTLED_REMEMBERED:
            self._settled.popitem(last=False)

    def _forget(self, lease: Lease) -> None:
        shards = self._jobs[lease.job.id]
        shards.remove(lease.shard.number)
        if not shards.entries:
            del self._jobs[lease.job.id]


@dataclass(slots=True)
class _Entry:
    """An unsettled shard. It keeps its holder when the lease expires, until someone takes it over."""

    shard: Shard
    epoch: int = 0
    holder: NodeId | None = None
    expires_at: float = 0.0


@dataclass(slots=True)
class _JobShards:
    """A job's unsettled shards."""

    job: Job
    order: int
    entries: dict[int, _Entry] = field(default_factory=dict)
    leased: set[int] = field(default_factory=set)
    requests: int = 0
    requests_leased: int = 0
    expiry_at: float = inf
    """No lease expires before this: a stream of single requests leases often, and must not look at all."""
    queued: list[int] = field(default_factory=list)
    """A heap with the numbers of all free shards, and of some that are no longer free: `take` skips them."""

    def add(self, shard: Shard) -> None:
        if shard.number in self.entries:
            raise QueueError(f"shard {shard.number} of job {self.job.id} is in the queue already")
        self.entries[shard.number] = _Entry(shard)
        self.requests += shard.requests
        heappush(self.queued, shard.number)

    def share(self) -> Share:
        return Share(self.job.id, self.requests_leased, self.order, self.job.priority, self.job.weight)

    def take(self, node: NodeId, expires_at: float) -> Lease | None:
        while self.queued:
            number = heappop(self.queued)
            if number in self.entries and number not in self.leased:
                entry = self.entries[number]
                entry.holder, entry.epoch, entry.expires_at = node, entry.epoch + 1, expires_at
                self.hold(number)
                return Lease(self.job, entry.shard, entry.epoch)
        return None

    def hold(self, number: int) -> None:
        entry = self.entries[number]
        self.expiry_at = min(self.expiry_at, entry.expires_at)
        if number not in self.leased:
            self.leased.add(number)
            self.requests_leased += entry.shard.requests

    def free(self, number: int) -> None:
        if number in self.leased:
            self.leased.discard(number)
            self.requests_leased -= self.entries[number].shard.requests
            heappush(self.queued, number)

    def free_expired(self, now: float) -> None:
        if now < self.expiry_at:
            return
        for number in [number for number in self.leased if self.entries[number].expires_at <= now]:
            self.free(number)
        self.expiry_at = min((self.entries[number].expires_at for number in self.leased), default=inf)

    def give_back(self, number: int) -> None:
        self.entries[number].holder = None
        self.free(number)

    def remove(self, number: int) -> None:
        self.free(number)
        self.requests -= self.entries.pop(number).shard.requests
