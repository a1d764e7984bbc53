"""What is done now and then: see who starves, tell the metrics, remove what is over or wanted no more."""

from collections import Counter

import structlog

from dispatcher.dispatch.node import Node
from dispatcher.errors import DispatcherError, QueueUnreachableError
from dispatcher.jobs.archive import Archive
from dispatcher.jobs.details import Details
from dispatcher.jobs.files import Files
from dispatcher.jobs.keeper import JobKeeper
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.life import ENDED, Stage, shown
from dispatcher.jobs.view import is_starving, slack_s
from dispatcher.model import JobId
from dispatcher.ports import Clock
from dispatcher.queue.sql import SqlQueue
from dispatcher.telemetry.metrics import Metrics

LOOK_S = 1.0
TELL_S = 5.0
"""Between two looks at what the metrics say."""
SWEEP_S = 30.0
COLLECT_S = 3600.0
"""All of a store is listed for it."""


class Housekeeping:
    """Runs beside the keeper."""

    def __init__(
        self,
        keeper: JobKeeper,
        node: Node,
        files: Files,
        archive: Archive,
        queue: SqlQueue,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._metrics = metrics
        self._keeper = keeper
        self._node = node
        self._files = files
        self._archive = archive
        self._clock = clock
        self._log = structlog.get_logger("dispatcher.jobs")

    async def run(self) -> None:
        """Until cancelled."""
        swept_at = told_at = float("-inf")
        collected_at = self._clock.now()
        while True:
            now = self._clock.now()
            self._note_busy(now)
            if now - told_at >= TELL_S:
                told_at = now
                await self._tell(now)
            if now - swept_at >= SWEEP_S:
                swept_at = now
                await self._sweep()
            if now - collected_at >= COLLECT_S:
                collected_at = now
                await self._collect()
            await self._clock.sleep(LOOK_S)

    def _note_busy(self, now: float) -> None:
        """A job begins to wait when it comes, or goes on, and not before."""
        busy = self._in_flight()
        for kept in self._keeper.jobs.values():
            waits = kept.stage is Stage.IN_PROGRESS and not kept.details.paused
            if busy[kept.id] or not waits or kept.busy_at is None:
                kept.busy_at = now

    async def _tell(self, now: float) -> None:
        jobs = self._keeper.jobs.values()
        statuses = Counter({shown(stage): 0 for stage in Stage})
        statuses.update(shown(kept.stage) for kept in jobs)
        busy = self._in_flight()
        starving = sum(is_starving(kept, busy[kept.id], now) for kept in jobs)
        self._metrics.jobs_counted(statuses, starving, self._late(now))
        try:
            self._metrics.queue_depth(await self._queue.depth())
        except QueueUnreachableError:  # the queue itself has said so
            return
        except DispatcherError as error:
            self._log.warning("queue_depth_unknown", error=str(error))

    def _in_flight(self) -> Counter[JobId]:
        """Requests of each job that are in flight, here and elsewhere."""
        in_flight = Counter(self._keeper.elsewhere.in_flight)
        in_flight.update(attempt.item.lease.job.id for attempt in self._node.desk.open_attempts())
        return in_flight

    def _late(self, now: float) -> int:
        """How many jobs will not be done in time at their present rate."""
        standings = self._node.ledger.standings(self._node.desk.shards, now)
        jobs, wall = self._keeper.jobs.values(), self._clock.wall()
        slacks = [slack_s(kept, standings[kept.id], wall) for kept in jobs if kept.id in standings]
        return sum(slack is not None and slack < 0 for slack in slacks)

    async def _sweep(self) -> None:
        try:
            await self._files.remove_expired()
            # In this order: a job that ends in between has files that are not among the names.
            ended = [kept for kept in self._keeper.jobs.values() if kept.stage in ENDED and not kept.released]
            seen = [(kept, kept.details) for kept in ended]
            names = await self._files.names()
            for kept, details in seen:
                if not self._archive.wants(details, names):
                    await self._release(kept, details)
        except QueueUnreachableError:
            return
        except DispatcherError as error:
            self._log.warning("sweep_failed", error=str(error))

    async def _collect(self) -> None:
        try:
            await self._archive.collect_garbage()
        except DispatcherError as error:
            self._log.warning("garbage_not_removed", error=str(error))

    async def _release(self, kept: Kept, details: Details) -> None:
        async with kept.lock:
            if kept.details is not details:  # it was retried
                return
            kept.released = True
            await self._archive.release(kept)
