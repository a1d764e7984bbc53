"""Letting go of shards: a complete one is settled, one that is at rest goes back to the queue."""

from asyncio import Task
from collections.abc import Awaitable, Callable, Collection

from dispatcher.dispatch.desk import Desk
from dispatcher.dispatch.ledger import Ledger
from dispatcher.dispatch.patience import PatientQueue
from dispatcher.dispatch.progress import Progress
from dispatcher.dispatch.shards import ShardInHand
from dispatcher.errors import LeaseLostError
from dispatcher.model import JobId, Lease
from dispatcher.ports import Recorder


class Settling:
    """Looks at shards, and lets go of each in a task of its own.

    Neither the books nor the feeder may wait for a disk or a lost database.

    Args:
        desk: Where shards are in hand.
        recorder: Closed for a shard before the queue is told.
        queue: Told of each shard.
        ledger, progress: Keep account of what becomes of each.
        start: Starts a task for this work.
        lose: Told of leases that turn out to be another's.
    """

    def __init__(
        self,
        desk: Desk,
        recorder: Recorder,
        queue: PatientQueue,
        ledger: Ledger,
        progress: Progress,
        *,
        start: Callable[[Callable[[], Awaitable[None]]], Task[None]],
        lose: Callable[[Collection[Lease]], None],
    ) -> None:
        self.tasks: set[Task[None]] = set()
        """What is under way."""
        self._desk = desk
        self._recorder = recorder
        self._queue = queue
        self._ledger = ledger
        self._progress = progress
        self._start = start
        self._lose = lose

    def look_at(self, shard: ShardInHand) -> None:
        """Let go of this shard if it is complete, or at rest."""
        if shard.leaving or not (shard.complete or shard.at_rest):
            return
        shard.leaving = True
        letting_go = self._settle if shard.complete else self._give_back
        task = self._start(lambda: letting_go(shard))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def see_off(self, job: JobId) -> None:
        """Let go of every shard of a job that is stopped, as soon as can be."""
        for shard in self._desk.shards.of_job(job):
            if shard.unrecorded:
                self._recorder.hasten(shard.lease)
            self.look_at(shard)

    async def _settle(self, shard: ShardInHand) -> None:
        """Close a complete shard and tell the queue."""
        try:
            await self._recorder.close(shard.lease)
            await self._queue.settle(shard.lease, shard.tally)
        except LeaseLostError:
            self._lose([shard.lease])
            return
        self._desk.shards.remove(shard.lease)
        self._ledger.settle(shard)

    async def _give_back(self, shard: ShardInHand) -> None:
        """Close a shard that is withdrawn, and leave the rest of it to whoever leases it next."""
        try:
            await self._recorder.close(shard.lease)
        except LeaseLostError:
            self._lose([shard.lease])
            return
        await self._queue.release([shard.lease])
        self._progress.lost(shard.tally)
        self._desk.shards.remove(shard.lease)
        self._ledger.gave_back(shard)
