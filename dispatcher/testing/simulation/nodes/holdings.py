"""Who holds which shard, by the queue's own time: kept beside the queue, and held against what it answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.model import Lease, NodeId
from dispatcher.testing.simulation.ledger import Ledger

TAKEOVER_S = 5.0
"""Beyond the lease time, until a dead node's shards are in another's hand that had room."""
HANDOVER_S = 1.0
"""The same for what a node gave back."""


@dataclass(slots=True)
class Holding:
    """The latest lease of one shard."""

    node: NodeId
    lease: Lease
    until: float
    """When it expires."""
    given_back: bool = False
    settled: bool = False

    @property
    def is_held(self) -> bool:
        """Whether its node may still have it."""
        return not (self.settled or self.given_back)

    def of(self, node: NodeId, lease: Lease) -> bool:
        """Whether this is that node's lease."""
        return self.node == node and self.lease.epoch == lease.epoch


class Holdings:
    """Every shard's latest lease."""

    def __init__(self, ledger: Ledger, lease_s: float) -> None:
        self.shards: dict[int, Holding] = {}
        self.taken: dict[tuple[int, int], float] = {}
        """When a later lease took the place of one, by shard and epoch."""
        self._asked: list[tuple[float, float]] = []
        """When nodes asked for work, and the number of the last shard that was in their reach."""
        self._ledger = ledger
        self._lease_s = lease_s

    def leased(self, node: NodeId, leases: Sequence[Lease], want: int, now: float) -> None:
        """The queue was asked for so many rows, and has given these shards."""
        for lease in leases:
            number = lease.shard.number
            self._check_free(number, lease.epoch, now)
            if number in self.shards:
                self.taken[number, self.shards[number].lease.epoch] = now
            self.shards[number] = Holding(node, lease, now + self._lease_s)
            self._ledger.note("leased", node, number, lease.epoch)
        enough = sum(lease.shard.requests for lease in leases) >= want
        reach = max((lease.shard.number for lease in leases), default=-1) if enough else math.inf
        self._asked.append((now, reach))

    def renewed(self, node: NodeId, leases: Sequence[Lease], lost: Sequence[Lease], now: float) -> None:
        """The queue has prolonged these, but for those that are lost."""
        for lease in leases:
            holding = self.shards[lease.shard.number]
            if lease not in lost and not holding.settled:
                ours = holding.of(node, lease)
                self._require(ours, f"{node} could renew shard {lease.shard.number}, which is another's")
                holding.until = now + self._lease_s

    def settled(self, node: NodeId, lease: Lease) -> None:
        """The queue has taken this shard as finished."""
        number, holding = lease.shard.number, self.shards[lease.shard.number]
        of = f"epoch {lease.epoch}, not {holding.lease.epoch}"
        self._require(holding.of(node, lease), f"{node} settled shard {number} by {of}")
        if not holding.settled:
            self._ledger.note("settled", node, number, lease.epoch)
        holding.settled = True

    def released(self, node: NodeId, leases: Sequence[Lease], now: float) -> list[Lease]:
        """The queue was given these back; returns those that were the node's to give."""
        given = []
        for lease in leases:
            holding = self.shards[lease.shard.number]
            if holding.of(node, lease) and holding.is_held:
                holding.given_back, holding.until = True, now
                self._ledger.note("released", node, lease.shard.number, lease.epoch)
                given.append(lease)
        return given

    def leases_of(self, node: NodeId) -> list[Lease]:
        """What a node holds, as far as the queue knows."""
        return [each.lease for each in self.shards.values() if each.node == node and each.is_held]

    def require_taken(self, leases: Sequence[Lease], free_at: float, why: str) -> None:
        """These shards are taken over, unless nobody who asked for work since then had them in reach."""
        reach = max((reach for at, reach in self._asked if at > free_at), default=-1.0)
        for lease in leases:
            number, holding = lease.shard.number, self.shards[lease.shard.number]
            taken = holding.lease.epoch > lease.epoch or holding.settled
            self._require(taken or reach < number, f"shard {number} {why}")

    def _check_free(self, number: int, epoch: int, now: float) -> None:
        before = self.shards.get(number)
        if before is not None:
            free = before.given_back or before.until <= now
            self._require(free, f"shard {number} is leased to two nodes: {before.node} has it")
            self._require(not before.settled, f"shard {number} is settled, and leased again")
            self._require(epoch > before.lease.epoch, f"shard {number}: epoch {epoch} comes again")

    def _require(self, kept: bool, promise: str) -> None:  # noqa: FBT001  # a condition, read as one
        self._ledger.require(kept, promise)
