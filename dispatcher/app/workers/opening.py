"""Several processes as the hands of a run."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from prometheus_client import CollectorRegistry

from dispatcher.app.hands import Hands
from dispatcher.app.state import OpenJob
from dispatcher.app.work import Work
from dispatcher.app.workers.crew import Crew
from dispatcher.app.workers.messages import Order
from dispatcher.app.workers.process import start_process
from dispatcher.app.workers.settings import packed
from dispatcher.config import Config
from dispatcher.ports import Clock
from dispatcher.telemetry.exporter import serve_metrics
from dispatcher.telemetry.metrics import Metrics
from dispatcher.telemetry.sums import Joined

SILENT_S_MIN = 30.0
"""A worker that is being started on a busy machine tells nothing for some seconds."""


class SeveralProcesses:
    """A `Workplace`: so many workers, and their metrics with this process's own as one."""

    def __init__(self, config: Config, work: Work, clock: Clock, count: int) -> None:
        own, self.registry = CollectorRegistry(), CollectorRegistry()
        self.metrics = Metrics(own)
        self._joined = Joined(own)
        self.registry.register(self._joined)
        self._config = config
        self._work = work
        self._clock = clock
        self._count = count
        self._crew: Crew | None = None

    @asynccontextmanager
    async def hands(self, opened: OpenJob) -> AsyncIterator[Hands]:
        """See Workplace."""
        start = partial(start_process, lock_descriptor=opened.lock.descriptor)
        self._crew = Crew(
            self._order(opened),
            opened.record.job.id,
            opened.queue,
            self._clock,
            self._joined,
            start,
            silent_s_max=max(SILENT_S_MIN, self._config.queue.lease_s),
        )
        yield self._crew

    async def refresh(self) -> None:
        """Have the workers tell their metrics."""
        if self._crew is not None:
            await self._crew.refresh()

    def _order(self, opened: OpenJob) -> Order:
        source = opened.prepared.source
        return Order(
            number=0,
            of=self._count,
            node="",
            config=packed(self._config),
            input=self._work.files.input,
            source=None if source is None else str(source),
            settings=self._work.settings,
        )


@asynccontextmanager
async def several_processes(
    config: Config, work: Work, clock: Clock, count: int
) -> AsyncIterator[SeveralProcesses]:
    """So many workers as the workplace. Raises ConfigError where the metrics' port cannot be bound."""
    workplace = SeveralProcesses(config, work, clock, count)
    port, host = config.telemetry.metrics_port, config.telemetry.metrics_host
    async with AsyncExitStack() as stack:
        if port is not None:
            serving = serve_metrics(workplace.registry, port, host, workplace.refresh)
            await stack.enter_async_context(serving)
        yield workplace
