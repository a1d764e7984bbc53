"""Who answers a job's rows: this process itself, or several."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from dispatcher.app.fleet import Fleet, open_fleet, open_metrics
from dispatcher.app.snapshot import Phase, Snapshot, view_run
from dispatcher.app.state import OpenJob
from dispatcher.config import Config
from dispatcher.dispatch.node import Node
from dispatcher.model import Tally
from dispatcher.results.recorder import JournalRecorder
from dispatcher.telemetry.metrics import Metrics


class Hands(Protocol):
    """Whoever works on a job until its queue is drained."""

    async def run(self) -> None:
        """Lease, send and record until nothing is left, or until stopped. Raises DispatcherError."""

    def request_drain(self) -> None:
        """Send nothing more, and end when what is in flight has ended."""

    def stop(self) -> None:
        """End at once. May be called again."""

    def view(self, phase: Phase, rows: int, earlier: Tally) -> Snapshot:
        """The run at this moment. `earlier` is what the shards settled by earlier runs add up to."""


class Workplace(Protocol):
    """Where hands are found for a job, once it is open."""

    @property
    def metrics(self) -> Metrics:
        """What the run itself counts."""

    def hands(self, opened: OpenJob) -> AbstractAsyncContextManager[Hands]:
        """Those that will work on it; everything they have is durable when the context is left."""


class OwnHands:
    """A node in this process."""

    def __init__(self, node: Node, fleet: Fleet, recorder: JournalRecorder) -> None:
        self._node = node
        self._fleet = fleet
        self._recorder = recorder
        self._draining: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """See Hands."""
        await self._node.run(until_drained=True)

    def request_drain(self) -> None:
        """See Hands."""
        self._draining = asyncio.get_running_loop().create_task(self._node.drain(), name="drain")

    def stop(self) -> None:
        """See Hands."""
        self._node.stop()

    def view(self, phase: Phase, rows: int, earlier: Tally) -> Snapshot:
        """See Hands."""
        pool, now = self._fleet.pool, self._fleet.clock.now()
        return view_run(phase, rows, earlier, self._node, pool, self._recorder.obstacle, now)


class OneProcess:
    """A `Workplace`: this process does everything, with its own fleet or with one that is watched already."""

    def __init__(self, config: Config, journals: Path, metrics: Metrics, fleet: Fleet | None) -> None:
        self.metrics = metrics
        self._config = config
        self._journals = journals
        self._fleet = fleet

    @asynccontextmanager
    async def hands(self, opened: OpenJob) -> AsyncIterator[Hands]:
        """See Workplace."""
        prepared = opened.prepared
        async with self._servers() as fleet, self._recorder(fleet) as recorder:
            node = fleet.node(opened.queue, prepared.payloads, recorder, prepared.review)
            yield OwnHands(node, fleet, recorder)

    def _servers(self) -> AbstractAsyncContextManager[Fleet]:
        return open_fleet(self._config, self.metrics) if self._fleet is None else nullcontext(self._fleet)

    def _recorder(self, fleet: Fleet) -> JournalRecorder:
        sync_s = self._config.results.sync_s
        return JournalRecorder(
            self._journals, fleet.clock, sync_s=sync_s, on_sync=fleet.metrics.journal_synced
        )


@asynccontextmanager
async def one_process(config: Config, journals: Path, fleet: Fleet | None) -> AsyncIterator[OneProcess]:
    """This process as the workplace. Raises ConfigError where the metrics' port cannot be bound."""
    if fleet is not None:
        yield OneProcess(config, journals, fleet.metrics, fleet)
        return
    async with open_metrics(config) as metrics:
        yield OneProcess(config, journals, metrics, None)
