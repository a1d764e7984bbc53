"""One worker: a node of its own on the run's queue, that obeys the run and reports to it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from dispatcher.app.clock import SystemClock
from dispatcher.app.files import JobFiles, job_files
from dispatcher.app.fleet import Fleet, open_fleet
from dispatcher.app.snapshot import Phase, Snapshot, view_run
from dispatcher.app.state import DATABASE
from dispatcher.app.workers.channel import Channel
from dispatcher.app.workers.messages import (
    AskSeries,
    Drain,
    Elsewhere,
    Ended,
    Failed,
    FromParent,
    FromWorker,
    Hungry,
    Order,
    Report,
    Stop,
    SuspectsAt,
    TellSeries,
)
from dispatcher.app.workers.settings import unpacked
from dispatcher.config import Config
from dispatcher.dispatch.node import Node
from dispatcher.errors import DispatcherError, StateError, ungrouped
from dispatcher.ingest.payloads import FilePayloads
from dispatcher.model import NodeId, ServerId, Tally
from dispatcher.pool.limits import Portion
from dispatcher.ports import Payloads, Review
from dispatcher.queue.sql import open_queue
from dispatcher.results.recorder import JournalRecorder
from dispatcher.telemetry.metrics import Metrics
from dispatcher.telemetry.sums import series_of

REPORT_S = 0.5
SUSPECTS_S = 0.05
"""Between two looks at where suspects are, so that the others know within a tenth of a second."""
LEASE_S = 10 * 365 * 86_400.0
"""Leases do not run out: the parent kills a worker that is silent, and gives back what it had. So nobody
takes over the journals of one that was only stopped, and may go on."""


class Worker:
    """Works by its order until nothing is left, or until it is told to end.

    `orphaned` is called when the parent is gone: it is to end the process at once.
    """

    def __init__(
        self, order: Order, channel: Channel[FromWorker, FromParent], orphaned: Callable[[], None]
    ) -> None:
        self._order = order
        self._config = unpacked(order.config)
        self._channel = channel
        self._orphaned = orphaned
        self._clock = SystemClock()
        self._registry = CollectorRegistry()
        self._metrics = Metrics(self._registry)
        self._stopped = False
        self._others_hungry = 0
        self._suspects_elsewhere: Sequence[str] = ()
        self._draining: asyncio.Task[None] | None = None
        self._fleet: Fleet | None = None
        self._recorder: JournalRecorder | None = None
        self._node: Node | None = None

    async def run(self) -> None:
        """Do it all; how it ended is the last message."""
        last: Ended | Failed
        try:
            with ungrouped():
                await self._work_and_report()
            last = Ended(nothing_left=not self._stopped)
        except DispatcherError as error:
            last = Failed(type(error).__name__, str(error))
        self._channel.tell(Report(self._snapshot()))
        self._channel.tell(TellSeries(series_of(self._registry)))
        self._channel.tell(last)
        await self._channel.flushed()

    async def _work_and_report(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            others = [
                tasks.create_task(self._obey(), name="obey"),
                tasks.create_task(self._report(), name="report"),
                tasks.create_task(self._tell_suspects(), name="suspects"),
            ]
            await self._work()
            for task in others:
                task.cancel()

    async def _work(self) -> None:
        requests = await asyncio.to_thread(_requests_of, self._order, self._config)
        async with self._node_at_work(requests) as node:
            if not self._stopped:
                await node.run(until_drained=True)

    @asynccontextmanager
    async def _node_at_work(self, requests: "_Requests") -> AsyncIterator[Node]:
        config, files = self._config, requests.files
        portion = Portion(self._order.number, self._order.of)
        async with (
            open_queue(files.state / DATABASE, self._clock, lease_s=LEASE_S) as queue,
            open_fleet(config, self._metrics, portion=portion) as fleet,
            JournalRecorder(
                files.journals,
                self._clock,
                sync_s=config.results.sync_s,
                on_sync=self._metrics.journal_synced,
            ) as recorder,
        ):
            self._fleet, self._recorder = fleet, recorder
            self._node = fleet.node(
                queue, requests.payloads, recorder, requests.review, NodeId(self._order.node)
            )
            self._node.desk.share_servers(portion)
            self._node.desk.hear_of_suspects(map(ServerId, self._suspects_elsewhere))
            yield self._node

    # Obeying

    async def _obey(self) -> None:
        while (message := await self._channel.hear()) is not None:
            match message:
                case Stop():
                    self._stop()
                case Drain():
                    self._drain()
                case AskSeries():
                    self._channel.tell(TellSeries(await asyncio.to_thread(series_of, self._registry)))
                case Elsewhere(servers):
                    self._suspects_elsewhere = servers
                    if self._node is not None:
                        self._node.desk.hear_of_suspects(map(ServerId, servers))
                case Hungry(others):
                    self._others_hungry = others
                case Order():
                    pass
        self._orphaned()

    def _stop(self) -> None:
        self._stopped = True
        if self._node is not None:
            self._node.stop()

    def _drain(self) -> None:
        self._stopped = True
        if self._node is not None and self._draining is None:
            self._draining = asyncio.create_task(self._node.drain(), name="drain")

    # Reporting

    async def _report(self) -> None:
        while True:
            self._channel.tell(
                Report(self._snapshot(), self._node is not None and self._node.desk.is_hungry())
            )
            await self._channel.flushed()
            await self._clock.sleep(REPORT_S)
            if self._node is not None:
                self._node.share_out(self._others_hungry)

    async def _tell_suspects(self) -> None:
        told: frozenset[ServerId] = frozenset()
        while True:
            await self._clock.sleep(SUSPECTS_S)
            if self._node is not None and (now := self._node.desk.suspects_at) != told:
                told = now
                self._channel.tell(SuspectsAt(sorted(now)))

    def _snapshot(self) -> Snapshot:
        if self._node is None or self._fleet is None or self._recorder is None:
            return Snapshot(Phase.STARTING, 0, Tally(), Tally())
        pool, obstacle = self._fleet.pool, self._recorder.obstacle
        return view_run(Phase.RUNNING, 0, Tally(), self._node, pool, obstacle, self._clock.now())


@dataclass(frozen=True, slots=True)
class _Requests:
    """Where the requests are read from, who looks at the answers, and where these go."""

    payloads: Payloads
    review: Review | None
    files: JobFiles


def _requests_of(order: Order, config: Config) -> _Requests:
    """Those of the run's input. Blocks."""
    if order.source is not None:
        return _Requests(FilePayloads(Path(order.source)), None, job_files(config, order.input))
    from dispatcher.app.table import Table  # noqa: PLC0415  # it needs an extra

    table = Table(config, order.input, is_staged=True)
    if table.settings != order.settings:
        raise StateError(
            f"{order.input}: a prompt or a schema was changed while the run went on; put it back, or give "
            "--restart to throw the answers away"
        )
    return _Requests(table.payloads, table.annotator.review, table.files)
