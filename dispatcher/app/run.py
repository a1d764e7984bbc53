"""`run`: one input, one job; from the first line read to the files in place."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

import structlog

from dispatcher.app.clock import SystemClock
from dispatcher.app.errand import Errand
from dispatcher.app.files import JobFiles
from dispatcher.app.fleet import Fleet
from dispatcher.app.hands import Hands, Workplace, one_process
from dispatcher.app.snapshot import Phase, Snapshot
from dispatcher.app.sources import check_sources
from dispatcher.app.state import OpenJob, open_job, remove_state
from dispatcher.app.work import Found, Work
from dispatcher.app.workers.opening import several_processes
from dispatcher.app.workers.settings import worker_count
from dispatcher.config import Config
from dispatcher.errors import QueueError, StoppedError, StorageError, ungrouped
from dispatcher.model import Job, Shard, Tally
from dispatcher.queue.records import JobStatus
from dispatcher.queue.sql import SqlQueue
from dispatcher.telemetry.metrics import Metrics

DEPTH_EVERY_S = 5.0
STOPS_ENOUGH = 2
"""Who asks once more has seen that the end does not come."""


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended."""

    snapshot: Snapshot
    files: JobFiles
    rejected: int
    """Input lines that were no requests and were skipped."""
    finished: bool
    """Whether every row has its outcome and the files are in place."""
    sent_nothing: bool = False
    """Whether the job had been finished by an earlier run already."""

    @property
    def exit_code(self) -> int:
        """0 all rows succeeded, 1 finished with failed rows, 3 stopped early and resumable."""
        if not self.finished:
            return 3
        return 1 if self.snapshot.done.failed or self.rejected else 0


class JobRun:
    """One run of one job. `execute` it once; `snapshot` and `request_stop` may be called meanwhile.

    Args:
        config: Every setting.
        work: What is to be done.
        fleet: Servers that are watched already, by this process, which then works alone; None opens the
            configured ones for this run.
    """

    def __init__(self, config: Config, work: Work, *, fleet: Fleet | None = None) -> None:
        self.files = work.files
        self.phase = Phase.STARTING
        self.config = config
        self._fleet = fleet
        self._work = work
        self._clock = SystemClock()
        self._stops = 0
        self.job: Job | None = None
        """Once the input has been read."""
        self._workers = 1
        self._hands: Hands | None = None
        self._rows = 0
        self._earlier = Tally()
        self._log = structlog.get_logger("dispatcher.run")

    async def execute(self) -> Summary:
        """Read, send, record and write until every row has its outcome, or until stopped.

        Raises DispatcherError: ConfigError, InputError and StateError before anything was sent; StorageError
        and ServersUnavailableError with everything recorded so far kept; StoppedError for a stop before the
        first row could be sent.
        """
        if self._fleet is None:
            check_sources(self.config)
            self._workers = worker_count(self.config)
        self._work.check()
        if (found := await asyncio.to_thread(self._work.found)) is not None:
            return self._found_before(found)
        with ungrouped():
            async with AsyncExitStack() as stack:
                workplace = await stack.enter_async_context(self._open_workplace())
                self.phase = Phase.READING
                opening = open_job(self.config, self._work, self._clock, self._check_stopped, self._workers)
                summary = await self._run(await stack.enter_async_context(opening), workplace)
        if summary.finished and summary.exit_code == 0 and not self.config.run.keep_state:
            await asyncio.to_thread(remove_state, self.files.state)
        return summary

    def _found_before(self, found: Found) -> Summary:
        self.phase = Phase.FINISHED
        self._rows = found.rows
        self._earlier = found.tally
        return Summary(self.snapshot(), self.files, 0, finished=True, sent_nothing=True)

    def request_stop(self) -> bool:
        """First call: send nothing more and wait for what is in flight. Second call: end at once.

        False where the run will not end soon of itself: a thread is reading or writing a whole file, or two
        calls were not enough. The process may be ended then, as it may be killed at any time.
        """
        self._stops += 1
        if self._stops == 1:
            self._log.info("stopping", phase=self.phase.value, advice="again to stop at once")
        if self._hands is None or self.phase not in (Phase.RUNNING, Phase.DRAINING):
            return self._stops == 1
        if self._stops == 1:
            self.phase = Phase.DRAINING
            self._hands.request_drain()
        else:
            self._hands.stop()
        return self._stops <= STOPS_ENOUGH

    def snapshot(self) -> Snapshot:
        """The run at this moment."""
        if self._hands is None:
            return Snapshot(self.phase, self._rows, self._earlier, Tally())
        return self._hands.view(self.phase, self._rows, self._earlier)

    def _check_stopped(self) -> None:
        if self._stops:
            raise StoppedError("stopped before anything was sent; run the same command to go on")

    def _open_workplace(self) -> AbstractAsyncContextManager[Workplace]:
        """Also before hours of reading: the metrics' port may be in use."""
        if self._workers > 1:
            return several_processes(self.config, self._work, self._clock, self._workers)
        return one_process(self.config, self.files.journals, self._fleet)

    async def _run(self, opened: OpenJob, workplace: Workplace) -> Summary:
        record = opened.record
        self.job, self._rows = record.job, record.requests
        self._earlier = await opened.queue.tally(record.job.id)
        if record.status is JobStatus.FINISHED:
            if not self._work.has_outputs(record.job.mark, self._earlier):
                await self._write(opened)
            self.phase = Phase.FINISHED
            return Summary(self.snapshot(), self.files, record.rejected, finished=True, sent_nothing=True)
        await self._answer(opened, workplace)
        finished = (await opened.queue.depth()).drained
        if finished:
            await self._write(opened)
        return Summary(self.snapshot(), self.files, record.rejected, finished=finished)

    async def _answer(self, opened: OpenJob, workplace: Workplace) -> None:
        async with workplace.hands(opened) as hands:
            self._check_stopped()
            self._hands, self.phase = hands, Phase.RUNNING
            depth = asyncio.create_task(self._tell_depth(opened.queue, workplace.metrics), name="queue depth")
            try:
                await hands.run()
            finally:
                depth.cancel()

    async def _tell_depth(self, queue: SqlQueue, metrics: Metrics) -> None:
        while True:
            try:
                metrics.queue_depth(await queue.depth())
            except (QueueError, StorageError) as error:
                self._log.warning("queue_depth_unknown", error=str(error))
            await self._clock.sleep(DEPTH_EVERY_S)

    async def _write(self, opened: OpenJob) -> None:
        self.phase = Phase.WRITING
        job = opened.record.job
        records = _from_thread(opened.queue.shards(job.id), asyncio.get_running_loop())
        writing = Errand()

        def shards() -> Iterator[Shard]:
            for record in records:
                writing.check()
                yield record.shard

        await writing.do(lambda: self._work.write(job, shards(), opened.prepared))
        await opened.queue.finish_job(job.id)
        self.phase = Phase.FINISHED


T = TypeVar("T")


def _from_thread(items: AsyncIterator[T], loop: asyncio.AbstractEventLoop) -> Iterator[T]:
    """Iterate in a thread over what the loop yields: a job's shards need not be in memory together."""

    async def following() -> tuple[T, ...]:
        async for item in items:
            return (item,)
        return ()

    while found := asyncio.run_coroutine_threadsafe(following(), loop).result():
        yield found[0]
