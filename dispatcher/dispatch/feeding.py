"""Keeping a node fed: when it takes shards from the queue, which, and how each comes in hand."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet

import structlog

from dispatcher.dispatch.desk import Desk
from dispatcher.dispatch.giving import Giving
from dispatcher.dispatch.ledger import Ledger
from dispatcher.dispatch.patience import PatientQueue
from dispatcher.dispatch.shards import ShardInHand
from dispatcher.dispatch.shares import ASKED
from dispatcher.dispatch.world import World
from dispatcher.errors import LeaseLostError, StorageError
from dispatcher.model import Job, JobId, Lease, Request
from dispatcher.ports import Replay


class Feeding:
    """Leases shards and opens them, as the desk has room for more and the queue has some.

    Args:
        desk: Says how much room there is, and takes shards in hand.
        world: Has the requests of each shard, and what is recorded of it.
        queue: Where shards are leased.
        ledger: Knows the jobs that are stuck, for their disk or their input fails.
        giving: Says when what is in the queue is for other nodes.
        took: Told of each shard that came in hand, with all its requests and what was recorded of them.
        lose: Told of leases that turn out to be another's.
    """

    def __init__(
        self,
        desk: Desk,
        world: World,
        queue: PatientQueue,
        ledger: Ledger,
        giving: Giving,
        *,
        took: Callable[[ShardInHand, Sequence[Request], Replay], None],
        lose: Callable[[Collection[Lease]], None],
    ) -> None:
        self.unopened: dict[Lease, None] = {}
        """Leases that are ours, and not in hand yet."""
        self.stopped = False
        """Whether nothing is leased any more."""
        self._desk = desk
        self._world = world
        self._queue = queue
        self._ledger = ledger
        self._giving = giving
        self._took = took
        self._lose = lose
        self._hungry = asyncio.Event()
        """There may be room for more requests."""
        self._roused = asyncio.Event()
        """It is not to sleep out its wait for the queue."""
        self._expected: dict[JobId, Job] = {}
        """What `expect` was told since the queue was last asked."""
        self._log = structlog.get_logger("dispatcher.node")

    async def run(self, *, until_drained: bool) -> None:
        """Keep the desk supplied. Returns when the queue is drained (if asked to), or after `stop`."""
        while not self.stopped:
            self._roused.clear()
            if await self._queue.is_coming_back():
                await self._wait_for_work()
                continue
            if self._desk.wants_others():
                await self._lease_others()
                continue
            if (room := self._desk.room()) == 0:
                await self._wait_for_room()
                continue
            if self._giving.leaves_the_queue(self._world.clock.now()):
                await self._wait_for_work()
                continue
            found = await self._lease(room)
            self._desk.queue_is_dry(dry=not found)
            if not found:
                if until_drained and await self._drained():
                    return
                await self._wait_for_work()

    def room_came(self) -> None:
        """There may be room for more requests, or a job of which some are wanted however little there is."""
        self._hungry.set()

    def rouse(self) -> None:
        """Ask the queue now, where it had nothing before."""
        self._roused.set()

    def expect(self, job: Job) -> None:
        """The queue may have shards of this job, which is from now on as it is here; see `Node.expect`."""
        self._expected[job.id] = job
        self._desk.backlog.shares.expect(job)
        self._roused.set()
        self._hungry.set()

    def stop(self) -> None:
        """Lease nothing more. May be called again."""
        self.stopped = True
        self._hungry.set()
        self._roused.set()

    async def _wait_for_room(self) -> None:
        self._hungry.clear()
        await self._hungry.wait()

    async def _wait_for_work(self) -> None:
        """Sleep until the queue may have work, or there is none left in hand, or the node stops."""
        async with asyncio.TaskGroup() as waits:
            listening = waits.create_task(self._listen(), name="queue wait")
            await self._roused.wait()
            listening.cancel()

    async def _listen(self) -> None:
        await self._queue.wait()
        self._roused.set()

    async def _drained(self) -> bool:
        return len(self._desk.shards) == 0 and await self._queue.drained()

    async def _lease_others(self) -> None:
        """Take shards of jobs of which too little is ready in hand, while there are such jobs."""
        shares = self._desk.backlog.shares
        shares.asking = False
        found = await self._lease(ASKED, shares.ample())
        shares.asked(found=found)
        if found:
            self._desk.queue_is_dry(dry=False)
        elif self._queue.obstacle is not None:
            shares.asking = True
            await self._wait_for_work()

    async def _lease(self, room: int, without: AbstractSet[JobId] = frozenset()) -> bool:
        """Take shards for about `room` requests in hand, of no job `without`. False where there are none."""
        self._expected.clear()
        leases = await self._queue.lease(room, self._desk.quotas.in_plenty | self._ledger.stuck | without)
        self.unopened.update(dict.fromkeys(leases))
        for lease in leases:
            if self._desk.closed:
                break
            await self._open(lease)
        for job in self._expected.values():  # the leases have it as it was before
            self._desk.backlog.shares.expect(job)
        return bool(leases)

    async def _open(self, lease: Lease) -> None:
        if (earlier := self._desk.shards.of_earlier(lease)) is not None:  # it expired before it was renewed
            self._lose([earlier.lease])
        recorder = self._world.recorder
        try:
            requests = await self._world.payloads.read(lease)
            await recorder.close(lease)  # a lease of this shard that we lost may have left it open
            replay = await recorder.open(lease, requests)
        except LeaseLostError:
            self._lose([lease])
            return
        except StorageError as error:
            if not self._ledger.hindered(lease, str(error), self._world.clock.now()):
                raise
            self._log.error("job_hindered", job=lease.job.id, shard=lease.shard.number, error=str(error))
            self.unopened.pop(lease, None)
            return
        if lease not in self.unopened:  # lost meanwhile
            return
        shard = self._desk.admit(lease, requests, replay)
        del self.unopened[lease]
        self._took(shard, requests, replay)
