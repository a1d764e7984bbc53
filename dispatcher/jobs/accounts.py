"""The node's accounts of jobs that are kept: opened from what is recorded, and their hindrances lifted."""

from collections.abc import Iterable

from dispatcher.dispatch.node import Node
from dispatcher.jobs.details import LineError
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.life import Stage
from dispatcher.jobs.quota import excess
from dispatcher.jobs.threads import Paperwork
from dispatcher.model import Tally
from dispatcher.ports import Clock
from dispatcher.queue.records import JobRecord
from dispatcher.queue.sql import SqlQueue

ASK_S = 2.0
"""Between two questions to the queue whether other nodes have settled a job's last shards."""


class Accounts:
    """What keeps the ledger and the queue of one mind about a job."""

    def __init__(self, queue: SqlQueue, node: Node, paperwork: Paperwork, clock: Clock) -> None:
        self._queue = queue
        self._node = node
        self._paperwork = paperwork
        self._clock = clock

    def admit(self, kept: Kept, rows: int, jobs: Iterable[Kept]) -> LineError | None:
        """Count the job's rows among those of its owner; what is wrong where they may not be so many."""
        standings = self._node.ledger.standings(self._node.desk.shards, self._clock.now())
        wrong = excess(kept, rows, jobs, standings)
        if wrong is None:
            kept.requests = rows
        return wrong

    async def follow(self, kept: Kept, record: JobRecord) -> None:
        """Begin to count a job's outcomes, from what is recorded. No shard of it may be in hand."""
        tally = await self._queue.tally(kept.id) if record.shards_settled else Tally()
        laid_aside = await self._paperwork.recorded(kept.job)
        self._node.ledger.follow(kept.id, tally, record.shards_settled, laid_aside)

    async def follow_elsewhere(self, kept: Kept, record: JobRecord) -> None:
        """The same, of a job that other nodes work on: what they have in hand is theirs to tell."""
        tally = await self._queue.tally(kept.id) if record.shards_settled else Tally()
        self._node.ledger.follow(kept.id, tally, record.shards_settled, {})

    async def follow_anew(self, kept: Kept) -> None:
        """The same, of a job whose shards were made, or reopened, just now."""
        record = await self._queue.job(kept.id)
        assert record is not None, "a job that is kept is in the queue"
        kept.counted(record)
        await self.follow(kept, record)

    async def catch_up(self, kept: Kept, shards_settled: int) -> None:
        """Count what other nodes have settled of a job that is followed, with which it is so many."""
        if shards_settled > self._node.ledger.shards_settled(kept.id):
            tally = await self._queue.tally(kept.id)
            self._node.ledger.caught_up(kept.id, tally, shards_settled)

    async def is_drained(self, kept: Kept) -> bool:
        """Whether every shard is settled. Where other nodes settle some, the queue alone knows."""
        ours = self._node.ledger.shards_settled(kept.id) >= kept.shards
        if kept.custody is None:
            return ours
        now = self._clock.now()
        if not ours and now - kept.asked_at < ASK_S:
            return False
        kept.asked_at = now
        record = await self._queue.job(kept.id)
        return record is not None and record.shards_settled >= record.shards

    def expect(self, kept: Kept) -> None:
        """Have a job that has shards to give take its turn, without a wait for room in the node's window."""
        if kept.stage is Stage.IN_PROGRESS and not kept.details.paused:
            self._node.expect(kept.job)

    async def try_again(self, kept: Kept, hindered_until: float) -> None:
        """Give shards back whose files could not be read: they are leased, and tried, again."""
        if leases := self._node.ledger.to_be_tried(kept.id, hindered_until):
            await self._queue.release(self._node.name, leases)
