"""The shards that this node has leased, and how far each one is."""

from collections import deque
from collections.abc import Iterator

from dispatcher.model import JobId, Lease, Outcome, Tally

ShardKey = tuple[JobId, int]


class ShardInHand:
    """One leased shard: what it still owes, and what its durable outcomes add up to."""

    __slots__ = ("_unrecorded", "lease", "leaving", "owed", "tally", "under_way", "withdrawn")

    def __init__(self, lease: Lease, owed: int, tally: Tally) -> None:
        self.lease = lease
        self.owed = owed
        """Requests without a durable outcome."""
        self.tally = tally
        self.withdrawn = False
        """Whether nothing more of it is sent: its job was paused or cancelled, or others are to have it."""
        self.under_way = 0
        """Attempts of a withdrawn shard that are not judged yet."""
        self.leaving = False
        """Whether it is on its way back to the queue."""
        self._unrecorded: deque[Outcome] = deque()

    def appended(self, outcome: Outcome) -> None:
        """An outcome was handed to the recorder."""
        self._unrecorded.append(outcome)

    def recorded(self, count: int) -> list[Outcome]:
        """The oldest `count` outcomes have become durable: count them and return them."""
        durable = [self._unrecorded.popleft() for _ in range(count)]
        self.owed -= count
        self.tally = self.tally.plus(durable)
        return durable

    @property
    def unrecorded(self) -> int:
        """Outcomes on their way to the disk."""
        return len(self._unrecorded)

    @property
    def answered(self) -> bool:
        """Whether every request has an outcome, durable or not."""
        return len(self._unrecorded) == self.owed

    @property
    def at_rest(self) -> bool:
        """Whether it is withdrawn, and nothing more will come of it."""
        return self.withdrawn and not self.under_way and not self._unrecorded

    @property
    def complete(self) -> bool:
        """Whether every request has a durable outcome."""
        return self.owed == 0


class ShardsInHand:
    """The leased shards by job and number."""

    def __init__(self) -> None:
        self._shards: dict[ShardKey, ShardInHand] = {}

    def __len__(self) -> int:
        return len(self._shards)

    def __iter__(self) -> Iterator[ShardInHand]:
        return iter(list(self._shards.values()))

    def add(self, shard: ShardInHand) -> None:
        """Take a shard in hand."""
        self._shards[key(shard.lease)] = shard

    def get(self, lease: Lease) -> ShardInHand | None:
        """The shard of this lease, if this very lease is still in hand."""
        shard = self._shards.get(key(lease))
        return shard if shard is not None and shard.lease.epoch == lease.epoch else None

    def of_earlier(self, lease: Lease) -> ShardInHand | None:
        """The same shard by an earlier lease that is still in hand."""
        shard = self._shards.get(key(lease))
        return shard if shard is not None and shard.lease.epoch != lease.epoch else None

    def of_job(self, job: JobId) -> list[ShardInHand]:
        """The shards of one job."""
        return [shard for shard in self if shard.lease.job.id == job]

    def remove(self, lease: Lease) -> None:
        """Let go of a shard: it was settled, released or lost."""
        if self.get(lease) is not None:
            del self._shards[key(lease)]


def key(lease: Lease) -> ShardKey:
    """What names a shard among all jobs."""
    return lease.job.id, lease.shard.number
