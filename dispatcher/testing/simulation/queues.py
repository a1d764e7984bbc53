"""The shared queue of a simulation, as one dispatcher reaches it, or does not."""

from collections.abc import Callable, Collection, Sequence

from dispatcher.errors import QueueError
from dispatcher.model import JobId, Lease, NodeId, QueueDepth, Tally
from dispatcher.ports import Queue
from dispatcher.testing.simulation.ledger import Ledger
from dispatcher.testing.simulation.virtual_loop import VirtualClock


class WallClocked:
    """`ports.Clock` whose `now` is the wall's: leases in a database live by that, and feel its jumps."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._clock.wall()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return self._clock.wall()

    async def sleep(self, seconds: float) -> None:
        """Sleep in virtual time."""
        await self._clock.sleep(seconds)


class LinkedQueue:
    """`ports.Queue` over a connection that can be down. Raises QueueError while it is."""

    def __init__(self, queue: Queue, ledger: Ledger, is_down: Callable[[], bool]) -> None:
        self.dead = False
        """Set when the dispatcher is killed: nothing it still does reaches the queue."""
        self._queue = queue
        self._ledger = ledger
        self._is_down = is_down

    async def lease(self, node: NodeId, want: int, without: Collection[JobId] = ()) -> Sequence[Lease]:
        """See Queue."""
        self._check()
        leases = await self._queue.lease(node, want, without)
        for lease in leases:
            self._ledger.note("leased", node, lease.shard.number, lease.epoch)
        return leases

    async def renew(self, node: NodeId, leases: Sequence[Lease]) -> Sequence[Lease]:
        """See Queue."""
        self._check()
        return await self._queue.renew(node, leases)

    async def settle(self, node: NodeId, lease: Lease, tally: Tally) -> None:
        """See Queue."""
        self._check()
        await self._queue.settle(node, lease, tally)
        self._ledger.note("settled", node, lease.shard.number, lease.epoch)

    async def release(self, node: NodeId, leases: Sequence[Lease]) -> None:
        """See Queue."""
        self._check()
        await self._queue.release(node, leases)

    async def depth(self) -> QueueDepth:
        """See Queue."""
        self._check()
        return await self._queue.depth()

    async def wait(self, timeout_s: float) -> None:
        """See Queue."""
        await self._queue.wait(timeout_s)

    def _check(self) -> None:
        if self.dead or self._is_down():
            raise QueueError("the queue cannot be reached")
