"""What is to be written and synced next, over all open journals: decided here, and carried out."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from dispatcher.errors import StorageError
from dispatcher.model import Lease
from dispatcher.ports import Clock, Recorded
from dispatcher.results.journal_file import JournalFile, OpenFiles


@dataclass(slots=True, eq=False)
class OpenShard:
    """A leased shard whose outcomes are being recorded."""

    lease: Lease
    file: JournalFile
    buffer: list[bytes] = field(default_factory=list)
    """Encoded records that the file has not been given yet."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def settled(self) -> bool:
        """Whether everything appended is durable."""
        return not self.buffer and self.file.settled

    @property
    def owing(self) -> int:
        """How many appended outcomes are not durable yet."""
        return len(self.buffer) + self.file.owing

    def hand_over(self) -> None:
        """Give the buffered records to the file."""
        self.file.give(self.buffer)
        self.buffer = []


@dataclass(frozen=True, slots=True)
class Batch:
    """One round of work for the disk."""

    writes: tuple[OpenShard, ...]
    syncs: tuple[OpenShard, ...]
    endings: tuple[OpenShard, ...]
    """Those to close, once they are settled."""

    @property
    def due(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.writes or self.syncs)


@dataclass(frozen=True, slots=True)
class Report:
    """How a batch went."""

    sync_seconds: tuple[float, ...]
    """How long each sync took."""
    errors: tuple[StorageError, ...]


class GroupCommit:
    """Decides what the next batch is. No awaits and no I/O: it is told the time, and what came of a batch.

    Everything appended is in the next batch's writes. Every `sync_s`, all that is unsynced joins the syncs
    and stays there until it is durable; a shard that ends joins at once, and ahead of the others.
    """

    def __init__(self, sync_s: float) -> None:
        self._sync_s = sync_s
        self._synced_at = float("-inf")
        self._unwritten: dict[OpenShard, None] = {}
        self._unsynced: dict[OpenShard, None] = {}
        self._syncing: dict[OpenShard, None] = {}
        self._hastened: dict[OpenShard, None] = {}
        self._ending: dict[OpenShard, None] = {}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to write, sync or end."""
        return not (self._unwritten or self._unsynced or self._ending)

    @property
    def owing(self) -> int:
        """How many appended outcomes are not durable yet."""
        return sum(shard.owing for shard in self._unwritten | self._unsynced)

    def append(self, shard: OpenShard, record: bytes) -> None:
        """An encoded record has come."""
        shard.buffer.append(record)
        self._unwritten[shard] = None

    def end(self, shard: OpenShard) -> None:
        """A shard is to be made durable now, and closed."""
        self._ending[shard] = None

    def hasten(self, shard: OpenShard) -> None:
        """A shard has had its last record: it does not wait for the next round of syncs."""
        self._hastened[shard] = None

    def next(self, now: float) -> Batch:
        """The work that is due. The batch must be executed, and `done` told, before the next is asked for."""
        writes, self._unwritten = self._unwritten, {}
        for shard in writes:
            shard.hand_over()
        self._unsynced |= writes
        if self._unsynced and now >= self._synced_at + self._sync_s:
            self._syncing |= self._unsynced
            self._synced_at = now
        syncs = tuple(self._ending | self._hastened | self._syncing)
        return Batch(tuple(writes), syncs, tuple(self._ending))

    def done(self, batch: Batch, report: Report) -> tuple[list[Recorded], list[OpenShard]]:
        """A batch is over: say which outcomes have become durable, and which shards have ended."""
        if report.errors:
            self._unwritten |= {shard: None for shard in self._unsynced if shard.file.unwritten}
        for shard in batch.syncs:
            if shard.file.settled:
                self._unsynced.pop(shard, None)
                self._syncing.pop(shard, None)
            if shard.settled:
                self._hastened.pop(shard, None)
        ended = [shard for shard in batch.endings if shard.settled]
        for shard in ended:
            del self._ending[shard]
        return list(_durable(batch.syncs)), ended


def execute(batch: Batch, files: OpenFiles, clock: Clock, sync_budget_s: float) -> Report:
    """Write, sync and close what the batch says. Blocks; a failure of one file does not hold up the others.

    Syncs end early, the first one excepted, when `sync_budget_s` is used up: writing must not wait for them.
    """
    errors: list[StorageError] = []
    for shard in batch.writes:
        try:
            files.admit(shard.file)
            shard.file.write()
        except StorageError as exc:
            errors.append(exc)
    seconds = _sync(batch.syncs, clock, sync_budget_s, errors)
    for shard in batch.endings:
        if shard.file.settled:
            files.close(shard.file)
    return Report(seconds, tuple(errors))


def _sync(
    shards: tuple[OpenShard, ...], clock: Clock, budget_s: float, errors: list[StorageError]
) -> tuple[float, ...]:
    seconds: list[float] = []
    started = clock.now()
    for shard in shards:
        before = clock.now()
        if seconds and before - started >= budget_s:
            break
        try:
            if shard.file.sync():
                seconds.append(clock.now() - before)
        except StorageError as exc:
            errors.append(exc)
    return tuple(seconds)


def _durable(shards: tuple[OpenShard, ...]) -> Iterator[Recorded]:
    for shard in shards:
        count = shard.file.take_durable()
        if count:
            yield Recorded(shard.lease, count)
