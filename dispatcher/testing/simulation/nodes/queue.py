"""The queue that several nodes share, and each node's connection to it."""

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from dispatcher.model import JobId, Lease, NodeId, QueueDepth, Tally
from dispatcher.ports import Clock
from dispatcher.queue.bell import Bell
from dispatcher.queue.memory import MemoryQueue
from dispatcher.testing.simulation.nodes.holdings import Holdings
from dispatcher.testing.simulation.nodes.scenario import Moment
from dispatcher.testing.simulation.nodes.wire import Wire

WAY_S = (0.0005, 0.01)
"""How long a statement takes to the database, and its answer back, at least and at most."""

T = TypeVar("T")


class SharedQueue:
    """The real queue in memory, as a database: what it is asked, it does at one instant of its own."""

    def __init__(self, queue: MemoryQueue, holdings: Holdings, now: Callable[[], float]) -> None:
        self.holdings = holdings
        self.links: list[QueueLink] = []
        """Told of new work, as by LISTEN and NOTIFY."""
        self.on_settled: Callable[[NodeId, Lease], None] = _nothing
        self.on_released: Callable[[NodeId, Sequence[Lease]], None] = _nothing
        self._queue = queue
        self._now = now

    async def lease(
        self, node: NodeId, doubtful: Sequence[Lease], want: int, without: Collection[JobId]
    ) -> Sequence[Lease]:
        """As SqlQueue does: what the node was given, and may not have heard of, comes before anything new."""
        if kept := [lease for lease in doubtful if lease not in await self.renew(node, doubtful)]:
            return kept
        leases = await self._queue.lease(node, want, without)
        self.holdings.leased(node, leases, want, self._now())
        return leases

    def leases_of(self, node: NodeId) -> list[Lease]:
        """What a node holds."""
        return self.holdings.leases_of(node)

    async def renew(self, node: NodeId, leases: Sequence[Lease]) -> Sequence[Lease]:
        """See Queue."""
        lost = await self._queue.renew(node, leases)
        self.holdings.renewed(node, leases, lost, self._now())
        return lost

    async def settle(self, node: NodeId, lease: Lease, tally: Tally) -> None:
        """See Queue."""
        await self._queue.settle(node, lease, tally)
        self.holdings.settled(node, lease)
        self.on_settled(node, lease)

    async def release(self, node: NodeId, leases: Sequence[Lease]) -> None:
        """See Queue."""
        await self._queue.release(node, leases)
        self.on_released(node, self.holdings.released(node, leases, self._now()))
        for link in self.links:
            link.hear()

    async def depth(self) -> QueueDepth:
        """See Queue."""
        return await self._queue.depth()


class QueueLink:
    """`ports.Queue` of one node, at the other end of a wire. It asks for `want_max` rows at once, at most."""

    def __init__(self, queue: SharedQueue, wire: Wire, clock: Clock, want_max: int | None) -> None:
        self._queue = queue
        self._want_max = want_max
        self._wire = wire
        self._bell = Bell(clock)
        self._doubtful: list[Lease] = []

    def hear(self) -> None:
        """There is new work."""
        if not self._wire.is_cut:
            self._bell.ring()

    async def lease(self, node: NodeId, want: int, without: Collection[JobId] = ()) -> Sequence[Lease]:
        """See Queue."""
        doubtful, want = list(self._doubtful), min(want, self._want_max or want)

        async def take() -> Sequence[Lease]:
            leases = await self._queue.lease(node, doubtful, want, without)
            self._doubtful.extend(lease for lease in leases if lease not in self._doubtful)
            return leases

        leases = await self._ask(take, Moment.LEASED)
        self._doubtful.clear()
        return leases

    async def renew(self, node: NodeId, leases: Sequence[Lease]) -> Sequence[Lease]:
        """See Queue."""
        return await self._ask(lambda: self._queue.renew(node, leases))

    async def settle(self, node: NodeId, lease: Lease, tally: Tally) -> None:
        """See Queue."""
        await self._wire.reach(Moment.SETTLING)
        await self._ask(lambda: self._queue.settle(node, lease, tally), Moment.SETTLED)

    async def release(self, node: NodeId, leases: Sequence[Lease]) -> None:
        """See Queue."""
        await self._ask(lambda: self._queue.release(node, leases))

    async def depth(self) -> QueueDepth:
        """See Queue."""
        return await self._ask(self._queue.depth)

    async def wait(self, timeout_s: float) -> None:
        """See Queue."""
        await self._bell.wait(timeout_s)

    async def _ask(self, work: Callable[[], Coroutine[Any, Any, T]], after: Moment | None = None) -> T:
        return await self._wire.ask(lambda: _at_once(work()), after)


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What the queue in memory does, which awaits nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        done: T = end.value
        return done
    raise AssertionError("the queue in memory awaits nothing")


def _nothing(_node: NodeId, _what: object) -> None:
    """Nobody is told."""
