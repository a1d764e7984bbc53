"""Has every job driven by one of the nodes that share the queue."""

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from dispatcher.errors import CustodyLostError, JobMovedError, QueueError, StorageError
from dispatcher.model import JobId, NodeId
from dispatcher.ports import Clock
from dispatcher.queue.custody import Custodies, Custody

LOOK_S = 1.0
"""Between two looks for jobs that nobody drives: those of a node that ended in order, or died."""
TAKEN_MAX = 32
"""Jobs taken at a look: the other nodes are to have their part of them."""


class Custodian:
    """Takes jobs for this node to drive, keeps them while it lives, and gives them back.

    Args:
        custodies: Whose they are.
        node: This one.
        clock: For the looks.
        lease_s: How long a custody lasts.
        took: Told of each job that this node is to drive from now on.
        lost: Told of each that it is to drive no more.
    """

    def __init__(
        self,
        custodies: Custodies,
        node: NodeId,
        clock: Clock,
        lease_s: float,
        *,
        took: Callable[[Custody], None],
        lost: Callable[[Custody], None],
    ) -> None:
        self._custodies = custodies
        self._node = node
        self._clock = clock
        self._lease_s = lease_s
        self._took = took
        self._lost = lost
        self.held: dict[JobId, Custody] = {}
        self._renewed_at = clock.now()
        self._log = structlog.get_logger("dispatcher.jobs")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._renew()
                for custody in await self._custodies.take_free(self._node, TAKEN_MAX):
                    self._take(custody)
            except (QueueError, StorageError):  # the queue itself has said so
                pass
            except Exception as error:  # noqa: BLE001  # a task's boundary: all custody would end with it
                self._log.error("sharing_failed", exc_info=error)
            await self._clock.sleep(LOOK_S)

    async def take(self, job: JobId) -> None:
        """Drive this one, which was made here just now, or is to go on; unless another node was quicker."""
        if (custody := await self._custodies.take(self._node, job)) is not None:
            self._take(custody)

    async def retire(self, job: JobId, details: Mapping[str, Any] | None) -> bool:
        """A job has come to its end, as these details say. False where it goes on: then it is kept."""
        if (custody := self.held.get(job)) is not None:
            try:
                await self._custodies.retire(custody, details)
            except JobMovedError:
                return False
            except CustodyLostError:  # another node has seen to that
                pass
            if self.held.get(job) == custody:
                del self.held[job]
        return True

    async def release(self) -> None:
        """Let the other nodes go on with everything, at once."""
        held, self.held = [*self.held.values()], {}
        if held:
            await self._custodies.release(held)

    async def _renew(self) -> None:
        now = self._clock.now()
        if now - self._renewed_at < self._lease_s / 3:
            return
        lost = await self._custodies.renew([*self.held.values()])
        self._renewed_at = now  # not where it failed: that is tried again at once
        for custody in lost:
            if self.held.get(custody.job_id) == custody:  # else it was taken anew meanwhile
                del self.held[custody.job_id]
                self._lost(custody)

    def _take(self, custody: Custody) -> None:
        self.held[custody.job_id] = custody
        self._took(custody)
