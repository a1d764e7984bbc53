"""One node: leases shards, drives servers, records outcomes. The async shell around the desk."""

import asyncio
import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from dispatcher.config import DispatchSettings, QueueSettings
from dispatcher.dispatch.desk import Attempt, Desk
from dispatcher.dispatch.progress import Progress
from dispatcher.dispatch.shards import ShardInHand
from dispatcher.dispatch.waiting import Waiting
from dispatcher.errors import LeaseLostError, QueueError, StorageError
from dispatcher.model import Answer, Break, BreakKind, Ending, Lease, NodeId, Outcome
from dispatcher.pool.monitor import Monitor
from dispatcher.pool.pool import GiveUp
from dispatcher.ports import Clock, Payloads, Queue, Recorder, Transport
from dispatcher.telemetry.metrics import Metrics

TICK_S = 0.25
"""How often limits that grew, pauses that ended and retries that are due are looked for."""
QUEUE_POLL_S = 1.0
QUEUE_RETRY_S = 2.0
"""Pause after a failed statement of the queue: a full disk, a lost database."""
SERVICE_UNAVAILABLE = 503


@dataclass(frozen=True, slots=True)
class World:
    """What a node acts on and through."""

    queue: Queue
    payloads: Payloads
    recorder: Recorder
    transport: Transport
    clock: Clock
    metrics: Metrics


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
        self.obstacle: str | None = None
        """Why the queue cannot be used just now, or None."""
        self._world = world
        self._monitor = monitor
        self._dispatch = dispatch
        self._queue = queue
        self.waiting = waiting
        self._stopped = False
        self._hungry = asyncio.Event()
        self._idle = asyncio.Event()
        self._tasks: asyncio.TaskGroup
        self._attempts: dict[Attempt, asyncio.Task[None]] = {}
        self._request_ids = map(f"{secrets.token_hex(4)}-{{:x}}".format, itertools.count())
        self._log = structlog.get_logger("dispatcher.node")

    async def run(self, *, until_drained: bool) -> None:
        """Lease, send, record. Returns when the queue is drained (if asked to), or after `drain`.

        On the way out, however it comes, every appended outcome is made durable and every lease given back.
        """
        self._monitor.join(self)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                keepers = [
                    tasks.create_task(self._keep_books(), name="books"),
                    tasks.create_task(self._keep_leases(), name="leases"),
                    tasks.create_task(self._tick(), name="tick"),
                ]
                await self._feed(until_drained=until_drained)
                for keeper in keepers:
                    keeper.cancel()
        finally:
            self._monitor.leave(self)
            await self._let_go()

    async def drain(self) -> None:
        """Lease and send nothing more; wait for what is in flight, for `dispatch.drain_s` at most."""
        self.desk.closed = True
        self._hungry.set()
        try:
            async with asyncio.timeout(self._dispatch.drain_s):
                while self.desk.in_flight or self.desk.unrecorded:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            self._log.warning("drain_timed_out", in_flight=self.desk.in_flight)
        self.stop()

    def stop(self) -> None:
        """End at once: open requests are closed, to be sent again by a later run. May be called again."""
        self.desk.closed = True
        for attempt, task in self._attempts.items():
            attempt.given_up = "the node stops"
            task.cancel()
        self._attempts.clear()
        self._hungry.set()
        self._stopped = True

    # Feeding

    async def _feed(self, *, until_drained: bool) -> None:
        while not self._stopped:
            if (room := self.desk.room()) == 0:
                await self._wait_for_room()
            elif not await self._lease(room):
                if until_drained and await self._drained():
                    return
                await self._world.queue.wait(QUEUE_POLL_S)

    async def _wait_for_room(self) -> None:
        self._hungry.clear()
        await self._hungry.wait()

    async def _drained(self) -> bool:
        return len(self.desk.shards) == 0 and (await self._world.queue.depth()).drained

    async def _lease(self, room: int) -> bool:
        """Take shards for about `room` requests in hand. False where there are none, or the queue fails."""
        leases: Sequence[Lease] = ()
        try:
            leases = await self._world.queue.lease(self.name, room)
            self.obstacle = None
        except (QueueError, StorageError) as error:
            self._queue_failed("lease", error)
        for lease in leases:
            await self._open(lease)
        return bool(leases)

    async def _open(self, lease: Lease) -> None:
        requests = await self._world.payloads.read(lease)
        finished, tally = await self._world.recorder.open(lease, requests)
        self.progress.replayed(tally)
        self.desk.admit(lease, requests, finished, tally)
        if len(finished) == len(requests):
            shard = self.desk.shards.get(lease)
            assert shard is not None, "a shard just admitted is in hand"
            await self._settle(shard)
        self._pump()

    def _queue_failed(self, what: str, error: Exception) -> None:
        self.obstacle = str(error)
        self._log.error("queue_failed", during=what, error=str(error))

    # Sending

    def capacity_changed(self) -> None:
        """Permits may have come up, or gone: try to send."""
        self.desk.look_everywhere()
        self._pump()
        self._hungry.set()

    def _pump(self) -> None:
        """Start every attempt for which there is a request and a permit."""
        if self._world.recorder.obstacle is not None:
            return
        for attempt in self.desk.assign():
            task = self._tasks.create_task(self._send(attempt), name="attempt")
            self._attempts[attempt] = task

    async def _send(self, attempt: Attempt) -> None:
        """One attempt: the permit is held only while the request is at the server."""
        try:
            ending = await self._post(attempt)
        finally:
            self.desk.release(attempt)
            self._attempts.pop(attempt, None)
        healthy = None
        if type(ending) is Answer and ending.status == SERVICE_UNAVAILABLE:
            healthy = await self._monitor.healthy(attempt.server)
        self._ended(attempt, ending, healthy=healthy)

    async def _post(self, attempt: Attempt) -> Ending:
        item = attempt.item
        timeout_s = item.lease.job.request_timeout_s
        try:
            return await self._world.transport.send(
                attempt.server.spec, item.request, next(self._request_ids), timeout_s
            )
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if attempt.given_up is None or task is None or task.uncancel() > 0:
                raise
            return Break(BreakKind.GIVEN_UP, attempt.given_up)

    def _ended(self, attempt: Attempt, ending: Ending, *, healthy: bool | None) -> None:
        ended = self.desk.attempt_ended(attempt, ending, healthy=healthy)
        self._monitor.carry_out(ended.effects)
        if ended.outcome is not None:
            self._append(attempt.item.lease, ended.outcome)
        self._pump()
        if self.desk.room():
            self._hungry.set()
        self._idle.set()

    def _append(self, lease: Lease, outcome: Outcome) -> None:
        self._world.recorder.append(lease, outcome)
        self.desk.appended(lease, outcome)

    def give_up(self, effect: GiveUp) -> None:
        """Close every request of ours that is open at this server; each is sent again."""
        for attempt in list(self.desk.open.get(effect.server.spec.id, ())):
            self._close(attempt, effect.reason)

    def _close(self, attempt: Attempt, reason: str) -> None:
        task = self._attempts.get(attempt)
        if task is not None and attempt.given_up is None:
            attempt.given_up = reason
            task.cancel()

    # Recording and settling

    async def _keep_books(self) -> None:
        while True:
            for recorded in await self._world.recorder.recorded():
                shard, outcomes = self.desk.recorded(recorded.lease, recorded.count)
                self._count(outcomes)
                if shard is not None and shard.complete:
                    await self._settle(shard)
            self._pump()
            self._hungry.set()
            self._idle.set()

    def _count(self, outcomes: Sequence[Outcome]) -> None:
        self.progress.recorded(outcomes)
        for outcome in outcomes:
            model = outcome.provenance.model if outcome.provenance else None
            self._world.metrics.outcome_recorded(outcome.code)
            self._world.metrics.tokens(model, outcome.tokens)

    async def _settle(self, shard: ShardInHand) -> None:
        """Close a complete shard and tell the queue, however long the queue cannot be told."""
        await self._world.recorder.close(shard.lease)
        while not await self._settled(shard):
            await self._world.clock.sleep(QUEUE_RETRY_S)
        self.desk.shards.remove(shard.lease)

    async def _settled(self, shard: ShardInHand) -> bool:
        try:
            await self._world.queue.settle(self.name, shard.lease, shard.tally)
        except LeaseLostError:
            self._note_lost(shard.lease)
        except (QueueError, StorageError) as error:
            self._queue_failed("settle", error)
            return False
        return True

    async def _keep_leases(self) -> None:
        while True:
            await self._world.clock.sleep(self._queue.lease_s / 3)
            leases = [shard.lease for shard in self.desk.shards]
            try:
                lost = await self._world.queue.renew(self.name, leases)
            except (QueueError, StorageError) as error:
                self._queue_failed("renew", error)
                continue
            for lease in lost:
                self._lose(lease)

    def _lose(self, lease: Lease) -> None:
        self._note_lost(lease)
        for attempt in self.desk.drop(lease):
            self._close(attempt, "the lease was lost")

    def _note_lost(self, lease: Lease) -> None:
        self._world.metrics.leases_lost(1)
        self._log.warning("lease_lost", shard=lease.shard.number)

    async def _tick(self) -> None:
        while True:
            await self._world.clock.sleep(TICK_S)
            now = self._world.clock.now()
            self.desk.ceiling.tick(now)
            self.progress.sample(now)
            self.capacity_changed()
            self._look_for_servers(now)

    def _look_for_servers(self, now: float) -> None:
        unserved = self.desk.unserved()
        stuck = bool(unserved) and self.desk.in_flight == 0 and not self.desk.servable(unserved)
        self._world.metrics.waiting_for_servers(waiting=bool(unserved))
        wait = self.waiting.look(unserved, stuck=stuck, now=now)
        if wait is not None:
            self._log.warning(
                "waiting_for_servers",
                models=[model or "any" for model in wait.models],
                requests=len(self.desk.backlog),
                seconds=round(wait.seconds, 1),
                servers=self._monitor.states(),
            )

    async def _let_go(self) -> None:
        """Make durable what was appended and give the leases back; a failure of one hinders no other."""
        leases = [shard.lease for shard in self.desk.shards]
        if self._world.recorder.obstacle is None:  # else the recorder's own end says what is not recorded
            for lease in leases:
                await self._world.recorder.close(lease)
        try:
            await self._world.queue.release(self.name, leases)
        except (QueueError, StorageError) as error:
            self._queue_failed("release", error)
