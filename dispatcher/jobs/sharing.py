"""What a service does about jobs because other services work on the same queue."""

import asyncio
from contextlib import suppress

import structlog

from dispatcher.errors import DispatcherError, QueueError, StorageError
from dispatcher.jobs.custodian import Custodian
from dispatcher.jobs.keeper import JobKeeper
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.life import ENDED, Stage
from dispatcher.model import JobId, NodeId
from dispatcher.ports import Clock
from dispatcher.queue.custody import Custody
from dispatcher.queue.sql import SqlQueue
from dispatcher.queue.transactions import News, Topic

LOOK_S = 1.0
"""How long news may wait to be acted on, where more of it comes."""
WHOLE_LOOK_S = 30.0
"""Between two looks at all jobs: news may be missed while a connection is made anew."""
CATCH_UP_S = 5.0
"""Between two looks at what others have settled of a job."""
CATCH_UP_SHARE = 20
"""And of one job at least so many times what that took: summing up millions of shards takes a second."""


class Sharing:
    """Keeps a keeper's jobs as the queue has them, and sees to it that each has one node that drives it."""

    def __init__(
        self, keeper: JobKeeper, queue: SqlQueue, node: NodeId, clock: Clock, lease_s: float
    ) -> None:
        self._keeper = keeper
        self._queue = queue
        self._clock = clock
        self.custodian = Custodian(queue.custody, node, clock, lease_s, took=self._took, lost=self._lost)
        self._changed: set[JobId] = set()
        self._looked_at = -WHOLE_LOOK_S
        self._news = asyncio.Event()
        self._counted_at = -CATCH_UP_S
        self._caught_up: dict[JobId, float] = {}
        """Until when not to sum up again what is settled of a job."""
        self._log = structlog.get_logger("dispatcher.jobs")

    async def run(self) -> None:
        """Until cancelled."""
        self._queue.listeners.append(self._heard)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.custodian.run(), name="custodian")
                tasks.create_task(self._follow(), name="job news")
        finally:
            self._queue.listeners.remove(self._heard)
            with suppress(QueueError, StorageError):  # then it is free when its time is over
                await self.custodian.release()

    async def wanted(self, kept: Kept) -> None:
        """A job was made here, or is to go on after its end: drive it at once, unless another node does."""
        if kept.custody is None:
            with suppress(QueueError, StorageError):  # then whichever looks next takes it
                await self.custodian.take(kept.id)

    # Custody

    def _took(self, custody: Custody) -> None:
        kept = self._keeper.jobs.get(custody.job_id)
        if kept is None:  # its news has not come yet
            self._changed.add(custody.job_id)
            self._news.set()
        self._entrust()

    def _entrust(self) -> None:
        for job, custody in self.custodian.held.items():
            kept = self._keeper.jobs.get(job)
            if kept is not None and kept.custody != custody:
                self._keeper.entrust(kept, custody)

    def _lost(self, custody: Custody) -> None:
        self._log.warning("custody_lost", job=custody.job_id)
        kept = self._keeper.jobs.get(custody.job_id)
        if kept is not None and kept.custody == custody:
            self._keeper.relieve(kept)

    # News

    def _heard(self, news: News | None) -> None:
        if news is None:
            self._looked_at = -WHOLE_LOOK_S
        elif news.topic is Topic.JOB and news.job is not None:
            self._changed.add(news.job)
        self._news.set()

    async def _follow(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._news.wait()
            self._news.clear()
            try:
                await self._look()
                await self._catch_up()
                await self._retire()
                continue
            except DispatcherError as error:
                self._log.debug("jobs_not_seen", error=str(error))  # the queue itself has said so
            except Exception as error:  # noqa: BLE001  # a task's boundary: without it no news would come at all
                self._log.error("sharing_failed", exc_info=error)
            await self._clock.sleep(LOOK_S)

    async def _look(self) -> None:
        now = self._clock.now()
        if now - self._looked_at >= WHOLE_LOOK_S:
            self._looked_at = now
            try:
                await self._keeper.roll.look_at_all()
            except BaseException:
                self._looked_at = -WHOLE_LOOK_S
                raise
        while self._changed:
            job = self._changed.pop()  # before the look: what is heard during it may be later than it sees
            try:
                await self._keeper.roll.look(job)
            except BaseException:
                self._changed.add(job)
                raise
        self._entrust()

    async def _catch_up(self) -> None:
        if self._clock.now() - self._counted_at < CATCH_UP_S:
            return
        settled = await self._queue.keeping.settled()
        self._counted_at = self._clock.now()
        later = {job: time for job, time in self._caught_up.items() if time > self._counted_at}
        self._caught_up = later
        for job, shards_settled in settled.items():
            kept = self._keeper.jobs.get(job)
            if kept is not None and kept.stage is Stage.IN_PROGRESS and job not in later:
                began = self._clock.now()
                await self._keeper.catch_up(kept, shards_settled)
                later[job] = began + CATCH_UP_SHARE * (self._clock.now() - began)

    async def _retire(self) -> None:
        """Jobs that have ended want no node any more."""
        for job, custody in [*self.custodian.held.items()]:
            kept = self._keeper.jobs.get(job)
            if kept is None or kept.stage not in ENDED or kept.driven:
                continue
            if await self.custodian.retire(job, kept.known) and kept.custody == custody:
                kept.custody = None
