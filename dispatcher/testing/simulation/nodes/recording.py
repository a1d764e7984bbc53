"""A node's recorder, watched: what it was told, and what it has made durable."""

from collections import deque
from collections.abc import Sequence

from dispatcher.model import Grudge, JobId, Lease, Outcome, Request
from dispatcher.ports import Recorded, Recorder, Replay
from dispatcher.testing.simulation.nodes.records import Records
from dispatcher.testing.simulation.nodes.weather import Links


class WatchedRecorder:
    """`ports.Recorder` before the real one."""

    def __init__(self, recorder: Recorder, node: str, records: Records, links: Links) -> None:
        self._recorder = recorder
        self._node = node
        self._records = records
        self._links = links
        self._appended: dict[tuple[JobId, int, int], deque[int]] = {}

    async def open(self, lease: Lease, requests: Sequence[Request]) -> Replay:
        """See Recorder."""
        replay = await self._recorder.open(lease, requests)
        self._records.opened(self._node, lease, replay.finished)
        return replay

    def append(self, lease: Lease, outcome: Outcome) -> None:
        """See Recorder."""
        self._appended.setdefault(_key(lease), deque()).append(outcome.index)
        self._recorder.append(lease, outcome)

    def remember(self, lease: Lease, index: int, grudge: Grudge) -> None:
        """See Recorder."""
        self._recorder.remember(lease, index, grudge)

    async def recorded(self) -> Sequence[Recorded]:
        """See Recorder."""
        told = await self._recorder.recorded()
        for recorded in told:
            appended = self._appended[_key(recorded.lease)]
            indexes = [appended.popleft() for _ in range(recorded.count)]
            self._records.recorded(self._node, recorded.lease, indexes, self._links)
        return told

    async def close(self, lease: Lease) -> None:
        """See Recorder."""
        await self._recorder.close(lease)

    def hasten(self, lease: Lease) -> None:
        """See Recorder."""
        self._recorder.hasten(lease)

    @property
    def obstacle(self) -> str | None:
        """See Recorder."""
        return self._recorder.obstacle


def _key(lease: Lease) -> tuple[JobId, int, int]:
    return lease.job.id, lease.shard.number, lease.epoch
