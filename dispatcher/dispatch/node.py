"""One node: leases shards, drives servers, records outcomes. The async shell around the desk."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress

import structlog

from dispatcher.config import DispatchSettings, QueueSettings
from dispatcher.dispatch.attempt import Attempt
from dispatcher.dispatch.desk import Desk
from dispatcher.dispatch.feeding import Feeding
from dispatcher.dispatch.giving import Giving
from dispatcher.dispatch.ledger import Ledger
from dispatcher.dispatch.lookout import Lookout
from dispatcher.dispatch.outcomes import outcomes_of_withheld
from dispatcher.dispatch.patience import RETRY_S, PatientQueue
from dispatcher.dispatch.progress import Progress
from dispatcher.dispatch.quarantine import Convicted, Suspected
from dispatcher.dispatch.sending import Sending
from dispatcher.dispatch.settling import Settling
from dispatcher.dispatch.shards import ShardInHand
from dispatcher.dispatch.telling import Telling
from dispatcher.dispatch.waiting import Waiting
from dispatcher.dispatch.world import World
from dispatcher.errors import LeaseLostError
from dispatcher.model import Break, BreakKind, Ending, Job, JobId, Lease, NodeId, Outcome, Request, Tally
from dispatcher.pool.effects import GiveUp
from dispatcher.pool.monitor import Monitor
from dispatcher.pool.server import Server
from dispatcher.ports import Replay

TICK_S = 0.25
"""How often limits that grew, pauses that ended and retries that are due are looked for."""
CLOSE_S_MAX = 30.0
"""How long the end waits for outcomes to become durable: a disk that has stopped must not hold it up."""


class Node:
    """Works on the queue until it is drained, or for ever; `drain` ends it early and in order."""

    def __init__(
        self,
        name: NodeId,
        world: World,
        desk: Desk,
        monitor: Monitor,
        dispatch: DispatchSettings,
        queue: QueueSettings,
        waiting: Waiting,
    ) -> None:
        self.name = name
        self.desk = desk
        self.progress = Progress(world.clock.now())
        self.ledger = Ledger()
        self._world = world
        self._monitor = monitor
        self._dispatch = dispatch
        self._queue = PatientQueue(world.queue, name, world.clock)
        self._lease_s = queue.lease_s
        self.waiting = waiting
        self._lookout = Lookout(desk, monitor, waiting, world.metrics)
        self._idle = asyncio.Event()
        """There may be nothing left to wait for."""
        self._tasks: asyncio.TaskGroup
        self._withdrawn: set[JobId] = set()
        self._telling = Telling(world.tracer, prompts=world.log_prompts)
        self._sending = Sending(
            desk, world.transport, world.wording, monitor.healthy, self._telling.sent, self._ended
        )
        self._settling = Settling(
            desk,
            world.recorder,
            self._queue,
            self.ledger,
            self.progress,
            start=self._start_settling,
            lose=self._lose,
        )
        self._giving = Giving(desk, self._settling)
        self._feeding = Feeding(
            desk, world, self._queue, self.ledger, self._giving, took=self._took, lose=self._lose
        )
        self._log = structlog.get_logger("dispatcher.node")

    @property
    def obstacle(self) -> str | None:
        """Why the queue cannot be used just now, or nothing be recorded; None where all is well."""
        return self._queue.obstacle or self._world.recorder.obstacle

    @property
    def held_up(self) -> str | None:
        """Why nothing is sent just now: an obstacle, or no server for what waits; None where it is sent."""
        return self.obstacle or (None if self.desk.in_flight else self.waiting.reason)

    async def run(self, *, until_drained: bool) -> None:
        """Lease, send, record. Returns when the queue is drained (if asked to), or after `drain`.

        On the way out, however it comes, every appended outcome is made durable and every lease given back.
        """
        self._monitor.join(self)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                keepers = [
                    tasks.create_task(self._guarded(self._keep_books), name="books"),
                    tasks.create_task(self._guarded(self._keep_leases), name="leases"),
                    tasks.create_task(self._guarded(self._tick), name="tick"),
                ]
                await self._guarded(lambda: self._feeding.run(until_drained=until_drained))
                for task in (*keepers, *self._settling.tasks):
                    task.cancel()
        finally:
            self._monitor.leave(self)
            self.stop()
            await self._let_go()

    async def drain(self) -> None:
        """Lease and send nothing more; wait for what is in flight, for `dispatch.drain_s` at most."""
        self.desk.closed = True
        self._feeding.room_came()
        try:
            async with asyncio.timeout(self._dispatch.drain_s):
                while self._busy():
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            self._log.warning("drain_timed_out", in_flight=self.desk.in_flight)
        self.stop()

    def withdraw(self, job: JobId, *, at_once: bool) -> None:
        """Send nothing more of this job, and give its shards back when what is open has ended.

        `at_once` closes what is open. Until `welcome`, shards of the job that come in hand go back as well.
        """
        self._withdrawn.add(job)
        attempts = self._sending.of_job(job)
        self.desk.withdraw(job, attempts)
        for attempt in attempts if at_once else ():
            self._sending.close(attempt, Break(BreakKind.GIVEN_UP, "its job was stopped"))
        self._settling.see_off(job)

    def welcome(self, job: JobId) -> None:
        """Work on this job again."""
        self._withdrawn.discard(job)
        self._feeding.rouse()

    def expect(self, job: Job) -> None:
        """The queue may have shards of this job: one is looked for at once, however full the window is.

        Its priority and weight are these from now on, for what is in hand as well.
        """
        self._feeding.expect(job)

    def limit(self, job: JobId, limit: int | None) -> None:
        """Another limit of this job, or none, holds from now on; later leases must have it as well."""
        self.desk.limit(job, limit)
        self._feeding.rouse()
        self._feeding.room_came()

    def share_out(self, hungry: int) -> None:
        """So many other nodes have nothing left to send: leave them some of what is not begun here.

        They are hungry only where the queue has no more. To be told again for as long as it holds.
        """
        if given := self._giving.give(hungry, self._world.clock.now()):
            self._log.info("shards_given_back", shards=given, hungry=hungry)

    def holds(self, job: JobId) -> bool:
        """Whether shards of this job are in hand, or about to be."""
        opening = any(lease.job.id == job for lease in self._feeding.unopened)
        return opening or bool(self.desk.shards.of_job(job))

    def stop(self) -> None:
        """End at once: open requests are closed, to be sent again by a later run. May be called again."""
        self.desk.closed = True
        self._feeding.stop()
        self._sending.stop()
        self._idle.set()

    def _busy(self) -> bool:
        under_way = self.desk.in_flight or self.desk.unrecorded or self._settling.tasks
        return bool(under_way) and not self._feeding.stopped

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Once a part fails, or the run is cancelled, no task can be started any more: send nothing."""
        try:
            await work()
        except BaseException:
            self.desk.closed = True
            raise

    # Sending

    def _took(self, shard: ShardInHand, requests: Sequence[Request], replay: Replay) -> None:
        """A shard came in hand: send what it has ready, and record what of it is not to be sent."""
        job = shard.lease.job.id
        self.progress.replayed(replay.tally)
        self.ledger.took(shard)
        for outcome in outcomes_of_withheld(requests, replay):
            self._append(shard.lease, outcome)
        if job in self._withdrawn:
            self.desk.withdraw(job, self._sending.of_job(job))
        self._settling.look_at(shard)
        self._pump()

    def capacity_changed(self) -> None:
        """Permits may have come up, or gone: try to send."""
        self.desk.look_everywhere()
        self._pump()
        self._feeding.room_came()

    def permit_freed(self, server: Server) -> None:
        """A live request gave a permit back there that no other one wants: it may be a job's."""
        if self.desk.backlog.ready() and server.permits_for_jobs(self._world.clock.now()) > 0:
            self.desk.permit_freed(server)
            self._pump()

    def _pump(self) -> None:
        """Start every attempt for which there is a request and a permit."""
        if self._world.recorder.obstacle is not None:
            return
        self._sending.start(self.desk.assign(), self._tasks)
        if self.desk.wants_others():
            self._feeding.room_came()

    def _hedge(self) -> None:
        if self._world.recorder.obstacle is None:
            self._sending.start(self.desk.hedge(), self._tasks)

    def _ended(self, attempt: Attempt, ending: Ending, healthy: bool | None) -> None:  # noqa: FBT001  # a callback
        ended = self.desk.attempt_ended(attempt, ending, healthy=healthy)
        self._telling.ended(attempt, ended.judgement)
        self._monitor.carry_out(ended.effects)
        if ended.outcome is not None:
            self._append(attempt.item.lease, ended.outcome)
        if ended.needless is not None:
            self._sending.close(ended.needless, Break(BreakKind.GIVEN_UP, "its other attempt ended first"))
        if attempt.item.lease.job.id in self._withdrawn:
            self._settling.see_off(attempt.item.lease.job.id)
        self.desk.first_refusal(attempt.server)
        self._pump()
        if self.desk.room():
            self._feeding.room_came()
        self._idle.set()

    def _append(self, lease: Lease, outcome: Outcome) -> None:
        self._world.recorder.append(lease, outcome)
        self.desk.appended(lease, outcome)
        shard = self.desk.shards.get(lease)
        if shard is not None and shard.answered:
            self._world.recorder.hasten(lease)

    def give_up(self, effect: GiveUp) -> None:
        """Close every request of ours that is open at this server; each is sent again, but for poison."""
        for found in self.desk.server_lost(effect.server, effect.loss):
            match found:
                case Convicted(lease, outcome):
                    self._append(lease, outcome)
                case Suspected(lease, index, grudge):
                    self._world.recorder.remember(lease, index, grudge)
        kind = BreakKind.SILENT if effect.silent else BreakKind.GIVEN_UP
        for attempt in list(self.desk.open.get(effect.server.spec.id, ())):
            self._sending.close(attempt, Break(kind, effect.reason))

    def spare(self, server: Server) -> None:
        """A suspect server lives: nobody is to blame."""
        self.desk.server_spared(server)

    # Recording, and letting go

    async def _keep_books(self) -> None:
        while True:
            for recorded in await self._world.recorder.recorded():
                shard, outcomes = self.desk.recorded(recorded.lease, recorded.count)
                self._count(outcomes)
                self.ledger.recorded(recorded.lease.job.id, outcomes)
                if shard is not None:
                    self._settling.look_at(shard)
            self._pump()
            self._feeding.room_came()
            self._idle.set()

    def _count(self, outcomes: Sequence[Outcome]) -> None:
        self.progress.recorded(outcomes)
        self._world.metrics.outcomes_recorded(outcomes)

    def _start_settling(self, work: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
        task = self._tasks.create_task(self._guarded(work), name="settle")
        task.add_done_callback(self._settled_one)
        return task

    def _settled_one(self, _task: "asyncio.Task[None]") -> None:
        self._idle.set()
        if not len(self.desk.shards):
            self._feeding.rouse()

    async def _keep_leases(self) -> None:
        while True:
            # One that failed is tried again soon: when the queue is back, what has expired is anybody's.
            await self._world.clock.sleep(self._lease_s / 3 if self._queue.obstacle is None else RETRY_S)
            if (leases := self._leases()) and (lost := await self._queue.renew(leases)):
                self._lose(lost)

    def _leases(self) -> list[Lease]:
        return [*self._feeding.unopened, *(shard.lease for shard in self.desk.shards)]

    def _lose(self, leases: Collection[Lease]) -> None:
        """Stop work on these leases, those of them that are still ours to lose."""
        for lease in leases:
            shard = self.desk.shards.get(lease)
            if lease in self._feeding.unopened or shard is not None:
                self._feeding.unopened.pop(lease, None)
                self.progress.lost(shard.tally if shard else Tally())
                if shard is not None:
                    self.ledger.gave_back(shard)
                self._world.metrics.leases_lost(1)
                self._log.warning("lease_lost", job=lease.job.id, shard=lease.shard.number)
        for attempt in self.desk.drop(leases):
            self._sending.close(attempt, Break(BreakKind.GIVEN_UP, "the lease was lost"))
        self._feeding.room_came()
        self._idle.set()

    async def _tick(self) -> None:
        while True:
            await self._world.clock.sleep(TICK_S)
            now = self._world.clock.now()
            self.desk.ceiling.tick(now)
            self.progress.sample(now)
            self.ledger.sample(now)
            self.capacity_changed()
            self._hedge()
            self._lookout.look(now)
            recorder = self._world.recorder
            self._world.metrics.hindered(
                queue=self._queue.obstacle is not None, journal=recorder.obstacle is not None
            )

    async def _let_go(self) -> None:
        """Make durable what was appended and give the leases back; a failure of one hinders no other."""
        self._sending.forget()
        leases = self._leases()
        try:
            await self._close_shards()
        finally:
            await self._queue.release(leases)

    async def _close_shards(self) -> None:
        if self._world.recorder.obstacle is not None:
            return  # the recorder's own end says what is not recorded
        try:
            async with asyncio.timeout(CLOSE_S_MAX), asyncio.TaskGroup() as closing:
                for shard in self.desk.shards:
                    closing.create_task(self._close(shard.lease), name="close")
        except TimeoutError:
            self._log.warning("close_timed_out", shards=len(self.desk.shards))

    async def _close(self, lease: Lease) -> None:
        with suppress(LeaseLostError):  # whoever has it now goes on from what it found
            await self._world.recorder.close(lease)
