"""The truth about outcomes where several nodes work: what is durable where, and what each node was told."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from dispatcher.model import Lease
from dispatcher.testing.simulation.ledger import Ledger
from dispatcher.testing.simulation.nodes.weather import Links

CHECKPOINT_SLACK_S = 5.0
"""Beyond the interval, until a journal is in the store: looks are a second apart, and puts take time."""


@dataclass(frozen=True, slots=True)
class Durable:
    """One outcome on one node's disk."""

    node: str
    epoch: int
    at: float
    links: Links


@dataclass(slots=True)
class Opened:
    """What a node went on from at its latest lease of a shard."""

    epoch: int
    finished: AbstractSet[int]
    recorded: set[int] = field(default_factory=set)
    """What it has made durable itself since."""


class Records:
    """What all nodes have recorded.

    Args:
        ledger: Told of breaches.
        taken: When a later lease took the place of one, by shard and epoch.
        shard_size: Rows in a shard.
        lost_s: How old an outcome may be, in seconds, and be lost with its node; 0: none may be.
        told_s: How long after a trouble a node may not know yet that it has lost a lease.
    """

    def __init__(
        self,
        ledger: Ledger,
        taken: Mapping[tuple[int, int], float],
        shard_size: int,
        lost_s: float,
        told_s: float,
    ) -> None:
        self.redone = 0
        """Outcomes that were durable on a node's disk, and were made again."""
        self.stale = 0
        """Rows of settled shards that were sent again by nodes that could not know."""
        self.settled: dict[int, int] = {}
        """The epoch that settled each shard."""
        self.released: dict[tuple[int, int], float] = {}
        """When leases were given back, by shard and epoch."""
        self._ledger = ledger
        self._taken = taken
        self._shard_size = shard_size
        self._lost_s = lost_s
        self._told_s = told_s
        self._durable: dict[int, list[Durable]] = {}
        self._opened: dict[tuple[str, int], Opened] = {}

    def opened(self, node: str, lease: Lease, finished: AbstractSet[int]) -> None:
        """A node begins a shard, and was told that these rows are finished."""
        number = lease.shard.number
        self._opened[node, number] = Opened(lease.epoch, finished)
        for index in range(lease.shard.first_index, lease.shard.first_index + lease.shard.count):
            if index not in finished:
                for durable in self._durable.get(index, ()):
                    if durable.epoch < lease.epoch:  # else this is a node that was stopped before it began
                        self._redo(index, lease, durable)

    def recorded(self, node: str, lease: Lease, indexes: Sequence[int], links: Links) -> None:
        """A node has made these durable on its disk."""
        opened = self._opened[node, lease.shard.number]
        for index in indexes:
            kept = Durable(node, lease.epoch, self._ledger.now(), links)
            self._durable.setdefault(index, []).append(kept)
            if opened.epoch == lease.epoch:
                opened.recorded.add(index)
        self._ledger.note("durable", node, lease.shard.number, lease.epoch, len(indexes))

    def knows_finished(self, node: str, index: int, links: Links) -> bool:
        """Whether this node knows that a row is finished, which it is about to send."""
        number = index // self._shard_size
        opened = self._opened[node, number]
        if number in self.settled:
            self._check_stale(node, number, opened, links)
        return index in opened.finished or index in opened.recorded

    def _check_stale(self, node: str, number: int, opened: Opened, links: Links) -> None:
        """Only whoever was stopped, or cut off from the queue, may not know that a shard is settled."""
        self.stale += 1
        now = self._ledger.now()
        excused = opened.epoch < self.settled[number] and not links.calm(now - self._told_s, now)
        self._ledger.require(excused, f"{node} sent a row of shard {number}, which is settled")

    def _redo(self, index: int, lease: Lease, durable: Durable) -> None:
        """A row that was durable is to be done again: had its node had the time to save it?

        Not where it may have let go of the shard for a trouble that was over by then.
        """
        released_at = self.released.get((lease.shard.number, durable.epoch))
        self.redone += 1
        now = self._ledger.now()
        if released_at is not None and durable.at <= released_at:
            calm = durable.links.calm(released_at - self._told_s, released_at)
            what = f"durable when epoch {durable.epoch} was given back"
            self._ledger.require(not calm, f"row {index} of shard {lease.shard.number} is redone: {what}")
            return
        saved_at, taken_at = durable.at + self._lost_s, self._taken[lease.shard.number, durable.epoch]
        in_time = saved_at < taken_at and durable.links.calm(durable.at - self._told_s, saved_at)
        self._ledger.require(
            not in_time,
            f"row {index} of shard {lease.shard.number} is redone: durable for {now - durable.at:.1f} s",
        )


def lost_s(checkpoint_s: float, *, shared_disk: bool) -> float:
    """How old what a dead node has recorded may be, and be lost with it."""
    return 0.0 if shared_disk else checkpoint_s + CHECKPOINT_SLACK_S
