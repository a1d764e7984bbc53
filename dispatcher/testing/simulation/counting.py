"""A recorder and a witness that only count, for a million rows."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from dispatcher.model import Answer, Ending, Grudge, JobId, Lease, Outcome, Request, ServerId, Tally
from dispatcher.ports import Recorded, Replay
from dispatcher.results.mailbox import Mailbox
from dispatcher.testing.simulation.rows import Row
from dispatcher.testing.simulation.servers import SimulatedServer

SYNC_S = 0.25


class CountingRecorder:
    """`ports.Recorder` on no disk: outcomes are durable a quarter of a second after they came."""

    def __init__(self) -> None:
        self.outcomes = Tally()
        self.obstacle = None
        self._waiting: dict[tuple[JobId, int], tuple[Lease, list[Outcome]]] = {}
        self._mailbox = Mailbox()
        self._due = False

    async def open(self, lease: Lease, requests: Sequence[Request]) -> Replay:  # noqa: ARG002  # Recorder's signature: nothing was recorded before
        """See Recorder."""
        return Replay()

    def remember(self, lease: Lease, index: int, grudge: Grudge) -> None:
        """See Recorder. There is no later run."""

    def append(self, lease: Lease, outcome: Outcome) -> None:
        """See Recorder."""
        self._waiting.setdefault((lease.job.id, lease.shard.number), (lease, []))[1].append(outcome)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(SYNC_S, self._sync)

    async def recorded(self) -> Sequence[Recorded]:
        """See Recorder."""
        return await self._mailbox.take()

    async def close(self, lease: Lease) -> None:
        """See Recorder."""
        self._tell(self._waiting.pop((lease.job.id, lease.shard.number), (lease, [])))

    def hasten(self, lease: Lease) -> None:
        """See Recorder."""

    def _sync(self) -> None:
        self._due = False
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            self._tell(entry)

    def _tell(self, entry: tuple[Lease, list[Outcome]]) -> None:
        lease, outcomes = entry
        if outcomes:
            self.outcomes = self.outcomes.plus(outcomes)
            self._mailbox.put(Recorded(lease, len(outcomes)))


class Answers:
    """`world.Witness` that counts rows, answers and sends, and notes when the last answer came."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rows: int) -> None:
        self.last_at = 0.0
        self.sends = 0
        self.by_server: Counter[ServerId] = Counter()
        """Whole answers, without those to canaries."""
        self._answered = bytearray(rows)
        self._loop = loop

    @property
    def missing(self) -> int:
        """Rows that no server has answered."""
        return self._answered.count(0)

    def sent(self, server: SimulatedServer, row: Row) -> None:  # noqa: ARG002  # Witness's signature
        """See Witness."""
        self.sends += 1

    def ended(self, server: SimulatedServer, row: Row, ending: Ending | None) -> None:
        """See Witness."""
        if isinstance(ending, Answer) and ending.status == 200:  # noqa: PLR2004  # HTTP
            self.last_at = self._loop.time()
            self.by_server[server.id] += 1
            self._answered[row.index] = 1

    def canary_passed(self, server: ServerId) -> None:
        """See Witness."""
