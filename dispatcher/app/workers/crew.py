"""Keeps a run's workers at work: starts them, hears them, replaces those that die, ends them."""

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from dispatcher.app.snapshot import Phase, Snapshot
from dispatcher.app.workers.failures import failure
from dispatcher.app.workers.messages import (
    AskSeries,
    Drain,
    Ended,
    Failed,
    FromParent,
    FromWorker,
    Order,
    Report,
    Stop,
    SuspectsAt,
    TellSeries,
)
from dispatcher.app.workers.news import Worker, tell_hunger, tell_suspects
from dispatcher.app.workers.picture import Picture
from dispatcher.app.workers.process import WorkerProcess
from dispatcher.app.workers.roster import Roster, described
from dispatcher.errors import DispatcherError, QueueError, StorageError, WorkerError
from dispatcher.model import JobId, NodeId, Tally
from dispatcher.ports import Clock
from dispatcher.queue.sql import SqlQueue
from dispatcher.telemetry.sums import Joined

WATCH_S = 1.0
"""Between two looks for workers that have gone silent."""
AWAY_S = 2.0
"""A look that is so late was held up here: nobody is called silent for that."""
END_S_MAX = 60.0
"""How long a worker may take to end when told to stop: twice what its node waits for a disk."""
SERIES_S_MAX = 2.0
"""How long a scrape waits for a worker's figures; later, those of the scrape before are shown."""
RETRY_S = 2.0


Start = Callable[[Order], Awaitable[WorkerProcess]]


class Crew:
    """So many workers on one job, until nothing is left of it, or until they are told to end.

    Args:
        order: What each is told to do; its number and its node's name are filled in.
        job: The job they work on.
        queue: Where leases of the dead are given back.
        clock: Time.
        joined: Where the workers' metrics go.
        start: Starts a worker's process.
        silent_s_max: A worker that tells nothing for so long is killed: it may have been stopped, or hang.
    """

    def __init__(
        self,
        order: Order,
        job: JobId,
        queue: SqlQueue,
        clock: Clock,
        joined: Joined,
        start: Start,
        *,
        silent_s_max: float,
    ) -> None:
        self._order = order
        self._job = job
        self._queue = queue
        self._clock = clock
        self._joined = joined
        self._start = start
        self._silent_s_max = silent_s_max
        self._picture = Picture()
        self._roster = Roster()
        self._workers: dict[int, Worker] = {}
        self._began_at = clock.now()
        self._ending = asyncio.Event()
        self._stopped_at: float | None = None
        self._error: DispatcherError | None = None
        self._log = structlog.get_logger("dispatcher.crew")

    async def run(self) -> None:
        """Work until the queue is drained, or all have ended as they were told.

        Raises WorkerError where a worker dies again and again, and what a worker raised that no other could
        help either; with everything recorded so far kept.
        """
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch(), name="watch workers")
            async with asyncio.TaskGroup() as places:
                for number in range(self._order.of):
                    places.create_task(self._keep(number), name=f"worker {number + 1}")
            watching.cancel()
        if self._error is not None:
            raise self._error

    def request_drain(self) -> None:
        """Have all send nothing more, and end when what is in flight has ended."""
        self._ending.set()
        self._tell_all(Drain())

    def stop(self) -> None:
        """Have all end at once. May be called again."""
        self._ending.set()
        if self._stopped_at is None:
            self._stopped_at = self._clock.now()
        self._tell_all(Stop())

    def view(self, phase: Phase, rows: int, earlier: Tally) -> Snapshot:
        """The run at this moment."""
        return self._picture.view(phase, rows, earlier, self._clock.now() - self._began_at)

    async def refresh(self) -> None:
        """Ask all for their metrics, and wait until they have told them; not for long."""
        workers = list(self._workers.values())
        for worker in workers:
            worker.series_told.clear()
            worker.process.channel.tell(AskSeries())
        waits = [asyncio.create_task(worker.series_told.wait()) for worker in workers]
        if waits:
            _, late = await asyncio.wait(waits, timeout=SERIES_S_MAX)
            for wait in late:
                wait.cancel()

    # One place in the crew

    async def _keep(self, number: int) -> None:
        """Have one worker at work in this place, and another one when it has died."""
        while not self._ending.is_set():
            began_at = self._clock.now()
            why = await self._employ(number)
            if why is None:
                break
            if self._ending.is_set():
                self._log.error("worker_died", worker=number + 1, reason=why, again_in_s=None)
                break
            delay_s = self._roster.died(number, self._clock.now() - began_at)
            if delay_s is None:
                self._give_up(
                    WorkerError(f"worker {number + 1} died again and again, at last: {why}. {_ADVICE}")
                )
                break
            self._log.error("worker_died", worker=number + 1, reason=why, again_in_s=delay_s)
            await self._pause(delay_s)

    async def _employ(self, number: int) -> str | None:
        """Start a worker and hear it to its end: why it died, or None for an end in good order."""
        node = NodeId(f"{socket.gethostname()}-{secrets.token_hex(4)}-{number + 1}")
        order = msgspec.structs.replace(self._order, number=number, node=node)
        try:
            process = await self._start(order)
        except OSError as error:
            return f"it cannot be started: {error.strerror or error}"
        worker = self._workers[number] = Worker(number, node, process, self._clock.now())
        self._joined.began(node)
        self._pass_on_the_end(worker)
        tell_suspects(self._workers.values())
        try:
            await self._hear(worker)
        finally:
            del self._workers[number]
            status = await asyncio.shield(asyncio.create_task(process.ended(), name=f"end {node}"))
            self._joined.ended(node)
        return await self._account_for(worker, status)

    def _pass_on_the_end(self, worker: Worker) -> None:
        """It may have been told to all while this one was being started."""
        if self._stopped_at is not None:
            worker.process.channel.tell(Stop())
        elif self._ending.is_set():
            worker.process.channel.tell(Drain())

    async def _account_for(self, worker: Worker, status: int) -> str | None:
        tell_suspects(self._workers.values())
        tell_hunger(self._workers.values())
        match worker.last:
            case Ended(nothing_left):
                self._picture.ended(worker.number)
                if nothing_left:
                    self.stop()  # or the others would find it out a second later
                return None
            case Failed(kind, message):
                self._picture.ended(worker.number)
                self._give_up(failure(kind, message))
                return None
            case None:
                settled = await self._take_over(worker.node)
                self._picture.ended(worker.number, settled)
                return described(status)

    async def _take_over(self, node: NodeId) -> Tally:
        """Give back what a dead worker had leased, and say what it had settled."""
        while True:
            try:
                await self._queue.release_all(node)
                return await self._queue.tally(self._job, node)
            except (QueueError, StorageError) as error:
                self._log.error("queue_failed", during="release", error=str(error))
                if self._ending.is_set():
                    return Tally()  # the next run voids all leases
            await self._clock.sleep(RETRY_S)

    def _give_up(self, error: DispatcherError) -> None:
        if self._error is None:
            self._error = error
        self.stop()

    async def _pause(self, seconds: float) -> None:
        """Sleep, or less where the end comes."""
        async with asyncio.TaskGroup() as both:
            alarm = both.create_task(self._clock.sleep(seconds), name="back-off")
            ending = both.create_task(self._ending.wait(), name="end")
            await asyncio.wait({alarm, ending}, return_when=asyncio.FIRST_COMPLETED)
            alarm.cancel()
            ending.cancel()

    # Messages

    async def _hear(self, worker: Worker) -> None:
        while (message := await worker.process.channel.hear()) is not None:
            worker.heard_at = self._clock.now()
            self._heard(worker, message)

    def _heard(self, worker: Worker, message: FromWorker) -> None:
        match message:
            case Report(snapshot, hungry):
                self._picture.told(worker.number, snapshot)
                worker.hungry = hungry
                tell_hunger(self._workers.values())
            case TellSeries(series):
                self._joined.told(worker.node, series)
                worker.series_told.set()
            case SuspectsAt(servers):
                worker.suspects_at = servers
                tell_suspects(self._workers.values())
            case Ended() | Failed():
                worker.last = message

    def _tell_all(self, message: FromParent) -> None:
        for worker in self._workers.values():
            worker.process.channel.tell(message)

    # Silence

    async def _watch(self) -> None:
        while True:
            before = self._clock.now()
            await self._clock.sleep(WATCH_S)
            now = self._clock.now()
            was_away = now - before > WATCH_S + AWAY_S
            for worker in self._workers.values():
                if was_away:
                    worker.heard_at = now
                elif self._is_lost(worker, now):
                    self._log.error("worker_killed", worker=worker.number + 1, silent_s=now - worker.heard_at)
                    worker.process.kill()

    def _is_lost(self, worker: Worker, now: float) -> bool:
        overdue = self._stopped_at is not None and now - self._stopped_at > END_S_MAX
        return overdue or now - worker.heard_at > self._silent_s_max


_ADVICE = "Nothing is lost: the same command goes on, and with --workers 1 it runs in one process"
