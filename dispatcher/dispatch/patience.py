"""The shared queue as one node uses it: while it cannot be used, that is an obstacle and not an end."""

from collections.abc import Awaitable, Collection, Sequence
from typing import TypeVar

import structlog

from dispatcher.errors import LeaseLostError, QueueError, QueueUnreachableError, StorageError
from dispatcher.model import JobId, Lease, NodeId, Tally
from dispatcher.ports import Clock, Queue

POLL_S = 1.0
"""Between two looks for work in a queue that had none, unless it says sooner that it has."""
RETRY_S = 2.0
"""Pause after a failed statement: a full disk, a lost database."""
BACK_S = RETRY_S + 1.0
"""After the queue was away, nothing new is leased for so long: nodes are to prolong first what they have."""
SAY_EVERY_S = 60.0
"""How often one and the same failure is logged: each finished shard meets it every two seconds."""

T = TypeVar("T")


class PatientQueue:
    """A node's queue. Its failures are logged, kept as the `obstacle`, and answered as if there were no news.

    A call that succeeds ends the obstacle.
    """

    def __init__(self, queue: Queue, node: NodeId, clock: Clock) -> None:
        self.obstacle: str | None = None
        """Why the queue cannot be used just now, or None."""
        self._queue = queue
        self._node = node
        self._clock = clock
        self._back_at = float("-inf")
        """When it could be used again."""
        self._said: tuple[str, float] | None = None
        """The failure that was last logged, and when."""
        self._log = structlog.get_logger("dispatcher.node")

    async def lease(self, want: int, without: Collection[JobId] = ()) -> Sequence[Lease]:
        """Take shards for about `want` requests; none where there are none, or the queue fails."""
        return await self._ask("lease", self._queue.lease(self._node, want, without)) or ()

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Prolong these leases, and return those that are known to be lost."""
        return await self._ask("renew", self._queue.renew(self._node, leases)) or ()

    async def settle(self, lease: Lease, tally: Tally) -> None:
        """Tell that a shard is finished, however long it cannot be told. Raises LeaseLostError."""
        while not await self._ask("settle", self._settled(lease, tally)):
            await self._clock.sleep(RETRY_S)

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give shards back; where that fails, they are free when the leases expire."""
        await self._ask("release", self._queue.release(self._node, leases))

    async def drained(self) -> bool:
        """Whether nothing is left for any node."""
        depth = await self._ask("depth", self._queue.depth())
        return depth is not None and depth.drained

    async def is_coming_back(self) -> bool:
        """Whether the queue is away, or was until a moment ago: nothing new is to be leased then."""
        if self.obstacle is not None:
            await self.drained()
        return self.obstacle is not None or self._clock.now() - self._back_at < BACK_S

    async def wait(self) -> None:
        """Return when there may be new work, when it is time to look, or to try again after a failure."""
        if self.obstacle is None:
            await self._queue.wait(POLL_S)
        else:
            await self._clock.sleep(RETRY_S)

    async def _settled(self, lease: Lease, tally: Tally) -> bool:
        await self._queue.settle(self._node, lease, tally)
        return True

    async def _ask(self, during: str, answer: Awaitable[T]) -> T | None:
        try:
            told = await answer
        except LeaseLostError:
            raise
        except QueueUnreachableError as error:
            self.obstacle = str(error)  # the queue logs its outages itself, once for all who meet them
            return None
        except (QueueError, StorageError) as error:
            self._failed(during, str(error))
            return None
        if self.obstacle is not None:
            self.obstacle, self._back_at = None, self._clock.now()
        return told

    def _failed(self, during: str, why: str) -> None:
        self.obstacle = why
        now = self._clock.now()
        if self._said is None or self._said[0] != why or now - self._said[1] >= SAY_EVERY_S:
            self._said = why, now
            self._log.error("queue_failed", during=during, error=why)
