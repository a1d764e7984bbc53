"""Outcomes handed to a consumer in this process, for the Python stream face: nothing touches a disk."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from dispatcher.errors import StateError
from dispatcher.model import Grudge, JobId, Lease, Outcome, Request
from dispatcher.ports import Recorded, Replay
from dispatcher.results.mailbox import Mailbox


class MemoryRecorder:
    """Keeps outcomes until the consumer takes them. An outcome counts as recorded once it is taken.

    That is the back-pressure: a dispatcher does not run ahead of what is recorded. `append` never blocks and
    drops nothing before `abandon`; while `capacity` or more outcomes wait for the consumer, `obstacle` says
    so.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._shards: dict[tuple[JobId, int], _OpenShard] = {}
        self._waiting: deque[tuple[_OpenShard, Outcome]] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._abandoned = False
        self._mailbox = Mailbox()

    @property
    def obstacle(self) -> str | None:
        """Why nothing more should be sent just now, or None."""
        behind = len(self._waiting)
        return f"{behind} outcomes wait to be taken" if behind >= self._capacity else None

    async def outcomes(self) -> AsyncGenerator[Outcome, None]:
        """The outcomes as they come, for one consumer; ends after `end`, when all are taken."""
        while self._waiting or not self._ended:
            await self._changed.wait()
            while self._waiting:
                yield self._take()
            self._changed.clear()

    def end(self) -> None:
        """Say that no more outcomes will come."""
        self._ended = True
        self._changed.set()

    def abandon(self) -> None:
        """Say that no more outcomes will be taken: they are dropped, and nothing waits for a consumer."""
        self._abandoned = True
        self._waiting.clear()
        for shard in self._shards.values():
            shard.drained.set()

    async def open(self, lease: Lease, requests: Sequence[Request]) -> Replay:  # noqa: ARG002  Recorder's signature: there is no earlier run to compare with
        """Begin a shard, as Recorder says. Raises StateError where it is open."""
        if _key(lease) in self._shards:
            raise StateError(f"shard {lease.shard.number} of job {lease.job.id} is being recorded already")
        self._shards[_key(lease)] = _OpenShard(lease)
        return Replay()

    def remember(self, lease: Lease, index: int, grudge: Grudge) -> None:
        """Nothing is kept for a later run: there is none."""

    def append(self, lease: Lease, outcome: Outcome) -> None:
        """Hand over an outcome of an open shard, as Recorder says."""
        if self._abandoned:
            return
        shard = self._shards[_key(lease)]
        shard.outcome_came()
        self._waiting.append((shard, outcome))
        self._changed.set()

    async def recorded(self) -> Sequence[Recorded]:
        """Wait until the consumer has taken more, as Recorder says."""
        return await self._mailbox.take()

    async def close(self, lease: Lease) -> None:
        """End a shard, as Recorder says: waits for the consumer. Does nothing where the shard is not open."""
        shard = self._shards.get(_key(lease))
        if shard is None:
            return
        await shard.drained.wait()
        self._shards.pop(_key(lease), None)

    def hasten(self, lease: Lease) -> None:
        """Nothing to hasten: the consumer sets the pace."""

    def _take(self) -> Outcome:
        shard, outcome = self._waiting.popleft()
        shard.outcome_taken()
        self._mailbox.put(Recorded(shard.lease, 1))
        return outcome


@dataclass(slots=True, eq=False)
class _OpenShard:
    lease: Lease
    waiting: int = 0
    drained: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.drained.set()

    def outcome_came(self) -> None:
        self.waiting += 1
        self.drained.clear()

    def outcome_taken(self) -> None:
        self.waiting -= 1
        if not self.waiting:
            self.drained.set()


def _key(lease: Lease) -> tuple[JobId, int]:
    return lease.job.id, lease.shard.number
