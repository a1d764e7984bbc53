"""Journals that outlive their node: recorded on its disk, and put into a store every now and then."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Final, Self

import structlog

from dispatcher.errors import LeaseLostError, MissingError, StateError, StorageError
from dispatcher.model import Grudge, JobId, Lease, Outcome, Request
from dispatcher.ports import Clock, Recorded, Replay, Store
from dispatcher.results.checkpoints import Checkpoints
from dispatcher.results.copies import Copies
from dispatcher.results.recorder import JournalRecorder

LOOK_S: Final = 1.0
"""Between two looks at which journals are due; and between two tries where the store refuses."""
PUTS_AT_ONCE: Final = 4
NOTHING: Final = "files/writable"
"""A key that is asked for to see whether the store answers again."""


@dataclass(slots=True, eq=False)
class _Open:
    lease: Lease
    due_at: float
    version: str | None = None
    """Of what this lease has put into the store last."""
    known_bytes: int | None = None
    """How long the copy was that the store has."""
    earlier: str | None = None
    """The key of what the lease goes on from: of no more use once it has put its own."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Its journal is put by one at a time."""
    closing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Whoever closes it again waits until it is closed."""


class CheckpointedRecorder:
    """`ports.Recorder`: a JournalRecorder whose journals are in the store too, `checkpoint_s` old at most.

    An outcome counts when it is durable on this node. Should the node be lost, whoever takes the shard over
    goes on from the last checkpoint, and sends again what came after it. A finished shard is in the store as
    a whole before `close` returns, and so before the queue can be told that it is settled.

    A lease writes under a key of its own, which names its epoch: what a node writes that was stopped for too
    long, nobody reads. Besides, none writes once its own clock says that its lease is over.

    While the store refuses, `obstacle` says why, and what is due is tried again until it is there.

    Args:
        inner: Records on this node's disk, in `copies`; entered and left with this one.
        store: Where the journals go.
        copies: Where `inner` has its journals.
        clock: Time between checkpoints.
        random: Spreads the checkpoints, so that they do not all come at once.
        left_s: How long a lease is still ours, in seconds; 0 or less: it is not, unless it is prolonged,
            which is waited for; minus infinity: it is over.
        checkpoint_s: Seconds between two checkpoints of a journal that grows.
    """

    def __init__(
        self,
        inner: JournalRecorder,
        store: Store,
        copies: Copies,
        clock: Clock,
        random: Random,
        *,
        left_s: Callable[[Lease], float],
        checkpoint_s: float = 30.0,
    ) -> None:
        self._inner = inner
        self._store = store
        self._checkpoints = Checkpoints(store)
        self._copies = copies
        self._clock = clock
        self._random = random
        self._left_s = left_s
        self._checkpoint_s = checkpoint_s
        self._open: dict[tuple[JobId, int], _Open] = {}
        self._refused: str | None = None
        self._log = structlog.get_logger("dispatcher.recorder")

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        self._keeper = asyncio.create_task(self._keep_checkpoints(), name="checkpoints")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keeper.cancel()
        await asyncio.wait([self._keeper])
        await self._inner.__aexit__(kind, error, trace)

    @property
    def obstacle(self) -> str | None:
        """See Recorder: of this node's disk, or of the store."""
        return self._inner.obstacle or self._refused or self._store.obstacle

    async def open(self, lease: Lease, requests: Sequence[Request]) -> Replay:
        """See Recorder. Raises LeaseLostError where a later lease has recorded something already."""
        if _key(lease) in self._open:
            raise StateError(f"shard {lease.shard.number} of job {lease.job.id} is being recorded already")
        found = await self._checkpoints.earlier(lease)
        same = await asyncio.to_thread(self._copies.begin, lease, found)
        replay = await self._inner.open(lease, requests)
        opened = _Open(lease, self._clock.now() + self._random.uniform(0, self._checkpoint_s))
        if found is not None:
            opened.earlier = found[0].key
            opened.known_bytes = len(found[1]) if same else None
        self._open[_key(lease)] = opened
        return replay

    def append(self, lease: Lease, outcome: Outcome) -> None:
        """See Recorder."""
        self._inner.append(lease, outcome)

    def remember(self, lease: Lease, index: int, grudge: Grudge) -> None:
        """See Recorder."""
        self._inner.remember(lease, index, grudge)

    async def recorded(self) -> Sequence[Recorded]:
        """See Recorder: durable on this node."""
        return await self._inner.recorded()

    def hasten(self, lease: Lease) -> None:
        """See Recorder."""
        self._inner.hasten(lease)

    async def close(self, lease: Lease) -> None:
        """See Recorder: what is recorded is in the store on return. Waits out an obstacle.

        Raises LeaseLostError where the lease ends before that. A lease that is not open is closed already;
        an earlier one of the same shard, which was lost, is left as it is.
        """
        opened = self._open.get(_key(lease))
        if opened is None or opened.lease != lease:
            await self._inner.close(lease)
            self._open.pop(_key(lease), None)
            return
        async with opened.closing:
            if self._open.get(_key(lease)) is opened:
                await self._close(opened)

    async def _close(self, opened: _Open) -> None:
        lease = opened.lease
        try:
            await self._inner.close(lease)
            while not await self._tried(opened, finally_=True):
                await self._clock.sleep(LOOK_S)
        finally:
            if self._open.get(_key(lease)) is opened:  # a later lease may have it by now
                del self._open[_key(lease)]
        await asyncio.to_thread(self._copies.remove, lease)

    async def _keep_checkpoints(self) -> None:
        while True:
            await self._clock.sleep(LOOK_S)
            try:
                await self._look()
            except Exception as error:  # noqa: BLE001  # a task's boundary: the next look may be better
                self._log.error("checkpoints_failed", error=repr(error), exc_info=error)

    async def _look(self) -> None:
        now = self._clock.now()
        due = [opened for opened in self._open.values() if opened.due_at <= now]
        for start in range(0, len(due), PUTS_AT_ONCE):
            await asyncio.gather(*map(self._checkpoint, due[start : start + PUTS_AT_ONCE]))
        if self._refused is not None or self._store.obstacle is not None:
            await self._ask()

    async def _ask(self) -> None:
        """See whether the store is there again: what was refused may be nobody's any more."""
        try:
            await self._store.find(NOTHING)
        except StorageError as error:
            self._see(str(error))
        else:
            self._see(None)

    async def _checkpoint(self, opened: _Open) -> None:
        try:
            if await self._tried(opened, finally_=False):
                opened.due_at = self._clock.now() + self._checkpoint_s
        except LeaseLostError as error:  # the node is told when it renews, or closes
            opened.due_at = float("inf")
            self._log.warning("checkpoint_refused", error=str(error))

    async def _tried(self, opened: _Open, *, finally_: bool) -> bool:
        """Put a journal into the store, and say whether it is there. Raises LeaseLostError."""
        left_s = self._left_s(opened.lease)
        if finally_ and self._open.get(_key(opened.lease)) is not opened:
            raise LeaseLostError(
                f"shard {opened.lease.shard.number} of job {opened.lease.job.id}: it is leased anew"
            )
        if left_s == float("-inf"):
            raise LeaseLostError(
                f"shard {opened.lease.shard.number} of job {opened.lease.job.id}: the lease (epoch"
                f" {opened.lease.epoch}) is over by this node's clock"
            )
        if left_s <= 0:  # it may be prolonged yet: where the queue was away for all, nobody has taken it over
            return False
        try:
            async with asyncio.timeout(left_s), opened.lock:
                await self._put(opened, finally_=finally_)
        except (StorageError, TimeoutError) as error:
            self._see(str(error) or "the store does not answer")
            return False
        self._see(None)
        return True

    async def _put(self, opened: _Open, *, finally_: bool) -> None:
        """Put what has grown; at its end, a journal must be there under its own key, grown or not."""
        if self._open.get(_key(opened.lease)) is not opened:
            return  # it was closed while this waited for its turn, and its copy is gone
        known = None if finally_ and opened.version is None else opened.known_bytes
        try:
            content = await asyncio.to_thread(self._copies.read, opened.lease, known)
        except MissingError as error:
            raise LeaseLostError(
                f"{error}; whoever leases the shard next goes on from what is in the store"
            ) from error
        if content is None:
            return
        opened.version = await self._checkpoints.put(opened.lease, content, opened.version)
        opened.known_bytes = len(content)
        if opened.earlier is not None:
            await self._checkpoints.delete([opened.earlier])
            opened.earlier = None

    def _see(self, refused: str | None) -> None:
        """Said when it comes and when it goes, but for outages, of which the store itself tells."""
        if refused is not None and self._refused is None and self._store.obstacle is None:
            self._log.error("checkpoint_failed", error=refused)
        self._refused = refused


def _key(lease: Lease) -> tuple[JobId, int]:
    return lease.job.id, lease.shard.number
