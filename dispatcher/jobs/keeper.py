"""Takes every job through its life: one task a job, which goes on where a killed process left it."""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, assert_never

import msgspec
import structlog

from dispatcher.dispatch.node import Node
from dispatcher.errors import (
    CustodyLostError,
    DispatcherError,
    InputError,
    JobMovedError,
    QueueError,
    QueueUnreachableError,
    StoppedError,
)
from dispatcher.jobs.accounts import ASK_S, Accounts
from dispatcher.jobs.archive import Archive
from dispatcher.jobs.details import TokenDetails, read_details
from dispatcher.jobs.elsewhere import Elsewhere
from dispatcher.jobs.files import Files
from dispatcher.jobs.findings import EMPTY, Errors, errors_of, one_model
from dispatcher.jobs.kept import Kept, kept_of
from dispatcher.jobs.life import ENDED, STOPPABLE, Event, IllegalMoveError, Stage, unfinished_as
from dispatcher.jobs.moving import Moving
from dispatcher.jobs.roll import Roll
from dispatcher.jobs.threads import Paperwork
from dispatcher.model import JobId, Tally
from dispatcher.ports import Clock
from dispatcher.queue.custody import Custody
from dispatcher.queue.sql import SqlQueue

LOOK_S = 10.0
"""How often a job's time is looked at, at the latest: the wall clock may be set."""
RETRY_S = 5.0
"""Between two tries where a disk or the database refuses."""
LETTING_GO_S = 0.05
"""Between two looks whether a stopped job's shards are back."""


class JobKeeper:
    """Keeps jobs going while its context is open. `load` it before the node runs."""

    def __init__(
        self,
        queue: SqlQueue,
        node: Node,
        files: Files,
        archive: Archive,
        paperwork: Paperwork,
        clock: Clock,
        *,
        shared: bool = False,
    ) -> None:
        self._accounts = Accounts(queue, node, paperwork, clock)
        self.roll = Roll(queue, node, self._accounts)
        self.roll.arrived = self._arrived
        self._moving = Moving(queue, node, self.roll, self._accounts, files, clock)
        self.elsewhere = Elsewhere()
        """What other nodes do for the jobs; nothing where nobody tells it."""
        self._shared = shared
        self._queue = queue
        self._node = node
        self._archive = archive
        self._paperwork = paperwork
        self._clock = clock
        self._closing = False
        self._tasks = asyncio.TaskGroup()
        self._log = structlog.get_logger("dispatcher.jobs")

    @property
    def jobs(self) -> dict[JobId, Kept]:
        """Every job, the oldest first."""
        return self.roll.jobs

    @property
    def moves(self) -> int:
        """Grows whenever a job comes, moves or is removed."""
        return self.roll.moves

    async def load(self) -> None:
        """Take over what an earlier process has kept."""
        records = await self._queue.jobs()
        follow = self._accounts.follow_elsewhere if self._shared else self._accounts.follow
        for record in records:
            details = read_details(record.details)
            if details is None:
                continue
            kept = self.jobs[record.job.id] = kept_of(record, details)
            if kept.stage not in ENDED:
                await follow(kept, record)
        making = [made.names for kept in self.jobs.values() if (made := kept.details.making) is not None]
        await self._archive.open({record.job.id for record in records}, set().union(*making))
        self._node.ledger.settled = self._settled

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        for kept in self.jobs.values():
            self._start(kept)
            self._accounts.expect(kept)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        for kept in self.jobs.values():
            kept.wake.set()
        await self._tasks.__aexit__(kind, error, trace)

    def add(self, kept: Kept) -> Kept:
        """Keep a job that is in the queue now; see `Roll.add`."""
        kept = self.roll.add(kept)
        self._start(kept)
        return kept

    async def move(self, kept: Kept, event: Event, **changes: Any) -> None:
        """Move a job by what a user asks. Raises IllegalMoveError where there is no such move."""

        async def decide() -> None:
            if kept.id not in self.jobs:
                raise IllegalMoveError(f"job {kept.id} was deleted")
            await self._moving.make(kept, event, dict(changes), held=None)

        await self.roll.change(kept, decide)
        if self._shared:
            self.roll.act(kept, None)
        kept.wake.set()
        self._start(kept)

    async def remove(self, kept: Kept) -> None:
        """Forget a job that has ended, with its journals and input. Its files stay until they are deleted.

        Raises IllegalMoveError for one that has not.
        """

        async def decide() -> None:
            if kept.stage not in ENDED:
                raise IllegalMoveError(f"job {kept.id} is {kept.stage}: cancel it first")
            await self._queue.keeping.discard(kept.id, kept.known)
            self.roll.drop(kept)
            self._log.info("job_deleted", job=kept.id)
            await self._archive.release(kept)

        await self.roll.change(kept, decide)

    async def amend(self, kept: Kept, **changes: Any) -> None:
        """Change a job's details where it is. To be called under its lock; see `Roll.keep`."""
        await self.roll.keep(kept, msgspec.structs.replace(kept.details, **changes))

    # Among nodes that share the queue

    def entrust(self, kept: Kept, custody: Custody) -> None:
        """This node is to drive the job, until `relieve`."""
        kept.custody, kept.asked_at = custody, -math.inf
        self._start(kept)

    def relieve(self, kept: Kept) -> None:
        """Another node is to drive the job, or none any more."""
        kept.custody = None
        kept.wake.set()

    async def catch_up(self, kept: Kept, shards_settled: int) -> None:
        """Count what other nodes have settled of a job, with which it is so many shards."""
        await self._accounts.catch_up(kept, shards_settled)

    def _drives(self, kept: Kept) -> bool:
        if kept.stage in ENDED or self.jobs.get(kept.id) is not kept:
            return False
        return kept.custody is not None or not self._shared

    def _goes_on(self, kept: Kept) -> bool:
        """Whether it is still by the same custody that the step may be done."""
        return self._drives(kept) and kept.custody == kept.held

    def _arrived(self, kept: Kept) -> None:
        kept.wake.set()
        self._start(kept)

    # One job's task

    def _start(self, kept: Kept) -> None:
        """Have one task go on with it: that of a job which is retried just as it ends may still be there."""
        if self._drives(kept) and not kept.driven and not self._closing:
            kept.driven = True
            self._tasks.create_task(self._drive(kept), name=f"job {kept.id}")

    async def _drive(self, kept: Kept) -> None:
        try:
            await self._steps(kept)
        finally:
            kept.driven = False

    async def _steps(self, kept: Kept) -> None:
        while self._drives(kept) and not self._closing:
            kept.wake.clear()
            kept.held = kept.custody
            try:
                await self._step(kept)
            except StoppedError:  # a thread was told to end: by a move, or by our own end
                continue
            except CustodyLostError:
                if kept.custody == kept.held:  # else it was taken anew meanwhile
                    self.relieve(kept)
                continue
            except JobMovedError:
                await self._look_again(kept)
                continue
            except DispatcherError as error:
                self._hindered(kept, error, None)
            except Exception as error:  # noqa: BLE001  # a task's boundary: the other jobs go on
                self._hindered(kept, error, error)
            else:
                kept.obstacle = None
                continue
            await self._nap(kept, RETRY_S)

    async def _look_again(self, kept: Kept) -> None:
        with suppress(QueueError):  # the next step meets it again
            await self.roll.look(kept.id)

    def _hindered(self, kept: Kept, error: Exception, trace: Exception | None) -> None:
        kept.obstacle = str(error) or repr(error)
        if isinstance(error, QueueUnreachableError):  # the queue has said so, once for all jobs
            return
        self._log.error(
            "job_hindered", job=kept.id, stage=kept.stage.value, error=kept.obstacle, exc_info=trace
        )

    async def _nap(self, kept: Kept, seconds: float) -> None:
        """Sleep, unless the job is woken."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await kept.wake.wait()

    async def _step(self, kept: Kept) -> None:
        stage = kept.stage
        if stage in STOPPABLE and self._clock.wall() >= kept.details.expires_at:
            await self._moving.advance(kept, stage, Event.EXPIRE)
            return
        match stage:
            case Stage.VALIDATING:
                await self._validate(kept)
            case Stage.IN_PROGRESS:
                await self._work(kept)
            case Stage.REOPENING:
                await self._reopen(kept)
            case Stage.CANCELLING | Stage.EXPIRING:
                await self._stop(kept)
            case Stage.FINALIZING:
                await self._write(kept)
            case Stage.COMPLETED | Stage.FAILED | Stage.CANCELLED | Stage.EXPIRED:
                pass
            case _:
                assert_never(stage)

    async def _validate(self, kept: Kept) -> None:
        if not kept.untouched:
            await self._queue.keeping.clear(kept.id, kept.held)
        kept.untouched, kept.requests = False, 0
        try:
            report = await self._paperwork.read(kept, self._check(kept))
        except InputError as error:
            await self._refuse(kept, errors_of(error))
            return
        if report.rows == 0:
            await self._refuse(kept, EMPTY)
            return
        if wrong := self._accounts.admit(kept, report.rows, self.jobs.values()):
            await self._refuse(kept, (wrong,))
            return
        await self._accounts.follow_anew(kept)
        model = kept.details.model or one_model(report)
        await self._moving.advance(kept, Stage.VALIDATING, Event.VALIDATED, model=model)

    async def _refuse(self, kept: Kept, errors: Errors) -> None:
        await self._moving.advance(kept, Stage.VALIDATING, Event.REFUSED, errors=errors)
        if kept.stage is Stage.FAILED:
            await self._queue.keeping.clear(kept.id, kept.held)

    async def _work(self, kept: Kept) -> None:
        if await self._accounts.is_drained(kept):
            await self._moving.advance(kept, Stage.IN_PROGRESS, Event.DRAINED)
            return
        await self._accounts.try_again(kept, self._clock.now() - RETRY_S)
        look_s = ASK_S if self._shared else LOOK_S
        if self._node.ledger.is_hindered(kept.id):
            look_s = RETRY_S
        await self._nap(kept, min(look_s, kept.details.expires_at - self._clock.wall()))

    async def _stop(self, kept: Kept) -> None:
        if kept.details.at(Stage.IN_PROGRESS) is None:  # its input was not read to the end
            await self._queue.keeping.clear(kept.id, kept.held)
            kept.shards = kept.requests = 0
            await self._moving.conclude(kept, Tally(), TokenDetails())
            return
        self._node.withdraw(kept.id, at_once=True)
        keeping, clock = self._queue.keeping, self._clock
        while self._node.holds(kept.id) or await keeping.leased(kept.id):
            self._check(kept)()
            await self._accounts.try_again(kept, math.inf)
            await clock.sleep(LETTING_GO_S)
        await self._write(kept)

    async def _write(self, kept: Kept) -> None:
        await self._moving.name_files(kept)
        written = await self._paperwork.write(kept, unfinished_as(kept.stage), self._check(kept))
        await self._moving.conclude(kept, *written)

    async def _reopen(self, kept: Kept) -> None:
        """Reopen first, take back after: a crash between the two loses nothing, and all is done again."""
        await self._queue.reopen(kept.id, only_failed=True, held=kept.held)
        await self._paperwork.take_back_failures(kept, self._check(kept))
        await self._accounts.follow_anew(kept)
        expires_at = self._clock.wall() + kept.details.window_s
        anew: dict[str, Any] = {"expires_at": expires_at, "result": None, "token_details": TokenDetails()}
        await self._moving.advance(kept, Stage.REOPENING, Event.REOPENED, **anew)

    def _settled(self, job: JobId) -> None:
        if (kept := self.jobs.get(job)) is not None:
            kept.wake.set()

    def _check(self, kept: Kept) -> Callable[[], None]:
        """Raises StoppedError once the job has moved on, or the process is to end. For threads."""
        stage = kept.stage

        def check() -> None:
            if self._closing or kept.stage is not stage or not self._goes_on(kept):
                raise StoppedError(f"job {kept.id} is no longer {stage.value}")

        return check
