"""The jobs as this process knows them, kept of one mind with their rows in the queue."""

from collections.abc import Awaitable, Callable

from dispatcher.dispatch.node import Node
from dispatcher.errors import JobMovedError
from dispatcher.jobs.accounts import Accounts
from dispatcher.jobs.details import Details, read_details, status_of, stored
from dispatcher.jobs.kept import Kept, kept_of
from dispatcher.jobs.life import ENDED, Stage
from dispatcher.model import JobId
from dispatcher.queue.custody import Custody
from dispatcher.queue.records import JobRecord
from dispatcher.queue.sql import SqlQueue

TRIES_MAX = 10
"""How often a change is decided anew because another node was quicker."""
STOPPING = (Stage.CANCELLING, Stage.EXPIRING)


class Roll:
    """Every job, and how a change of one gets into the queue, or comes from there.

    `arrived` is told of each job that came or moved by another node's doing.
    """

    def __init__(self, queue: SqlQueue, node: Node, accounts: Accounts) -> None:
        self.jobs: dict[JobId, Kept] = {}
        """The oldest first."""
        self.moves = 0
        """Grows whenever a job comes, moves or is removed."""
        self.arrived: Callable[[Kept], None] = lambda _kept: None
        self._queue = queue
        self._node = node
        self._accounts = accounts

    def add(self, kept: Kept) -> Kept:
        """A job that is in the queue now: as it is kept, for its news may have been here first."""
        if (seen := self.jobs.get(kept.id)) is not None:
            return seen
        last = next(reversed(self.jobs.values()), None)
        self.jobs[kept.id] = kept
        if last is not None and last.created_at > kept.created_at:  # two nodes made one each
            self.jobs = {each.id: each for each in sorted(self.jobs.values(), key=_age)}
        self.moves += 1
        return kept

    def drop(self, kept: Kept) -> None:
        """A job that is no more."""
        if self.jobs.pop(kept.id, None) is not None:
            self.moves += 1

    # From here to the queue

    async def keep(
        self, kept: Kept, details: Details, *, held: Custody | None = None, wanted: bool = False
    ) -> None:
        """Have these details in the queue, and then here. To be called under the job's lock.

        Raises JobMovedError where another node was quicker: see `change`. `held` and `wanted`: see Keeping.
        """
        written = stored(details)
        await self._queue.keeping.move(
            kept.id, status_of(details), written, before=kept.known, held=held, wanted=wanted
        )
        kept.known, kept.details = written, details

    async def change(self, kept: Kept, decide: Callable[[], Awaitable[None]]) -> None:
        """Do this to a job as the queue has it: decided anew, after a look, where it had moved meanwhile."""
        for left in reversed(range(TRIES_MAX)):
            async with kept.lock:
                try:
                    await decide()
                except JobMovedError:
                    if not left:
                        raise
                else:
                    return
            await self.look(kept.id)

    # From the queue to here

    async def look(self, job_id: JobId) -> None:
        """Have the job here as it is in the queue."""
        kept = self.jobs.get(job_id)
        if kept is None:
            await self._came(await self._queue.job(job_id))
            return
        async with kept.lock:  # before it is read: what was read earlier may be older than what is known here
            await self._saw(kept, await self._queue.job(job_id))

    async def look_at_all(self) -> None:
        """Have all jobs here as they are in the queue."""
        known = set(self.jobs)  # before: one that is made here meanwhile is not missing
        records = {record.job.id: record for record in await self._queue.jobs()}
        for job_id in known | set(records):
            if self._is_news(job_id, records.get(job_id)):
                await self.look(job_id)

    def _is_news(self, job_id: JobId, record: JobRecord | None) -> bool:
        kept = self.jobs.get(job_id)
        if kept is None or record is None:
            return kept is not None or (record is not None and read_details(record.details) is not None)
        counts = (record.shards, record.requests) == (kept.shards, kept.requests)
        return not (counts and record.details == kept.known and record.job == kept.job)

    async def _came(self, record: JobRecord | None) -> None:
        details = None if record is None else read_details(record.details)
        if record is None or details is None:
            return
        kept = kept_of(record, details)
        if kept.stage not in ENDED:
            await self._accounts.follow_elsewhere(kept, record)
        if kept.id not in self.jobs:  # it was made here, or seen twice at a time
            self.add(kept)
            self.act(kept, None)

    async def _saw(self, kept: Kept, record: JobRecord | None) -> None:
        details = None if record is None else read_details(record.details)
        if record is None or details is None:
            self._went(kept)
            return
        before, knobs = kept.details, kept.job
        kept.counted(record)
        if kept.known == record.details and knobs == record.job:
            return
        if before.stage is not details.stage and details.stage is Stage.IN_PROGRESS:
            await self._accounts.follow_elsewhere(kept, record)
        kept.known, kept.details, kept.job = record.details, details, record.job
        if knobs.limit != record.job.limit:
            self._node.limit(kept.id, record.job.limit)
        self.act(kept, before)
        self.moves += 1

    def _went(self, kept: Kept) -> None:
        """Another node has deleted the job: whoever still drives it here is to end."""
        self.drop(kept)
        self._let_go(kept)
        kept.custody = None
        kept.wake.set()

    def act(self, kept: Kept, before: Details | None) -> None:
        """Have the node do about a move what every node does that works on the job, driving it or not."""
        details, was_paused = kept.details, before is not None and before.paused
        if details.stage in ENDED:
            self._let_go(kept)
        elif details.stage in STOPPING:
            self._node.withdraw(kept.id, at_once=True)
        elif details.paused:
            self._node.withdraw(kept.id, at_once=False)
        else:
            if was_paused:
                self._node.ledger.begin_rates(kept.id)
            self._node.welcome(kept.id)
            self._accounts.expect(kept)
        self.arrived(kept)

    def _let_go(self, kept: Kept) -> None:
        self._node.ledger.forget(kept.id)
        if self._node.holds(kept.id):  # we were cut off while it was stopped
            self._node.withdraw(kept.id, at_once=True)
        else:
            self._node.welcome(kept.id)


def _age(kept: Kept) -> tuple[float, str]:
    return kept.created_at, kept.id
