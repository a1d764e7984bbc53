"""How long this node's leases are its own, by its own clock: without asking anybody."""

import time
from collections.abc import Callable, Collection, Sequence

from dispatcher.model import JobId, Lease, NodeId, QueueDepth, Tally
from dispatcher.ports import Queue


def boot_time() -> float:
    """Seconds that go on while the machine sleeps, where the system has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Tenure:
    """`ports.Queue` before the one that is shared: sees every lease come and be prolonged.

    A lease counts from before the queue was asked, so that it ends here no later than there, however long
    the answer took, and however long the process stood still since.

    Args:
        queue: The shared one.
        lease_s: What it leases and prolongs for.
        now: A monotonic clock that does not stop while the machine sleeps.
    """

    def __init__(self, queue: Queue, lease_s: float, now: Callable[[], float] = boot_time) -> None:
        self._queue = queue
        self._lease_s = lease_s
        self._now = now
        self._until: dict[Lease, float] = {}

    def left_s(self, lease: Lease) -> float:
        """How long the lease is ours for certain; 0 or less: it may be another's, unless it can be prolonged.

        Minus infinity where it is over: it was settled, given back, or said to be lost.
        """
        return self._until.get(lease, float("-inf")) - self._now()

    async def lease(self, node: NodeId, want: int, without: Collection[JobId] = ()) -> Sequence[Lease]:
        """See Queue."""
        asked_at = self._now()
        leases = await self._queue.lease(node, want, without)
        self._held(leases, asked_at)
        return leases

    async def renew(self, node: NodeId, leases: Sequence[Lease]) -> Sequence[Lease]:
        """See Queue."""
        asked_at = self._now()
        lost = await self._queue.renew(node, leases)
        self._held(leases, asked_at)
        self._forget(lost)
        return lost

    async def settle(self, node: NodeId, lease: Lease, tally: Tally) -> None:
        """See Queue."""
        await self._queue.settle(node, lease, tally)
        self._forget([lease])

    async def release(self, node: NodeId, leases: Sequence[Lease]) -> None:
        """See Queue."""
        self._forget(leases)
        await self._queue.release(node, leases)

    async def depth(self) -> QueueDepth:
        """See Queue."""
        return await self._queue.depth()

    async def wait(self, timeout_s: float) -> None:
        """See Queue."""
        await self._queue.wait(timeout_s)

    def _held(self, leases: Sequence[Lease], asked_at: float) -> None:
        self._until.update(dict.fromkeys(leases, asked_at + self._lease_s))

    def _forget(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self._until.pop(lease, None)
