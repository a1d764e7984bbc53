"""Submitted jobs, as the API uses them: make, look at, stop, go on, change, send failed rows again."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from dispatcher.dispatch.node import Node
from dispatcher.jobs.archive import Archive
from dispatcher.jobs.details import Details, stored
from dispatcher.jobs.elsewhere import Elsewhere
from dispatcher.jobs.files import Files
from dispatcher.jobs.housekeeping import Housekeeping
from dispatcher.jobs.ids import new_job_id
from dispatcher.jobs.keeper import JobKeeper
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.life import ENDED, STOPPED, Event, IllegalMoveError, Stage
from dispatcher.jobs.overview import Overview, Overviews
from dispatcher.jobs.results import finished_lines
from dispatcher.jobs.sharing import Sharing
from dispatcher.jobs.view import JobView, Now, view_of
from dispatcher.model import Job, JobId
from dispatcher.ports import Clock
from dispatcher.queue.keeping import FileRecord
from dispatcher.queue.sql import SqlQueue


@dataclass(frozen=True, slots=True)
class NewJob:
    """What a job is made of. `job`'s id is not used: it gets one of its own."""

    owner: str
    input: FileRecord
    endpoint: str
    completion_window: str
    """As given; `window_s` is what it means."""
    window_s: float
    job: Job
    metadata: dict[str, str] | None = None
    output_expires_s: int | None = None
    rows_max: int | None = None
    """How many rows the owner may have queued; None: any number."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What of a job is to be changed: None leaves it. `unlimited` takes a limit away."""

    priority: int | None = None
    weight: float | None = None
    limit: int | None = None
    unlimited: bool = False


class Jobs:
    """The jobs of every owner, kept going while the context is open.

    `load` it before the node runs. `owner` is whose job it must be; None: anybody's. Methods that change a
    job return it as it is then, or None where there is no such job; they raise IllegalMoveError where it
    cannot be had, StorageError and QueueError where it could not be kept.
    """

    def __init__(  # noqa: PLR0913  # the service's parts, each used by some method
        self,
        queue: SqlQueue,
        node: Node,
        files: Files,
        archive: Archive,
        keeper: JobKeeper,
        housekeeping: Housekeeping,
        clock: Clock,
        *,
        sharing: Sharing | None = None,
    ) -> None:
        self._queue = queue
        self._node = node
        self._files = files
        self._archive = archive
        self._keeper = keeper
        self._clock = clock
        self._housekeeping = housekeeping
        self._sharing = sharing
        self._overviews = Overviews(keeper)

    async def load(self) -> None:
        """Take over what an earlier process has kept."""
        await self._keeper.load()

    async def __aenter__(self) -> Self:
        await self._keeper.__aenter__()
        self._beside = [asyncio.create_task(self._housekeeping.run(), name="housekeeping")]
        if self._sharing is not None:
            self._beside.append(asyncio.create_task(self._sharing.run(), name="sharing"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beside[0].cancel()
        await self._keeper.__aexit__(kind, error, trace)
        for task in self._beside:  # what others are to go on with is given back once nothing goes on here
            task.cancel()
        await asyncio.wait(self._beside)

    # Looking

    async def get(self, job_id: str, owner: str | None = None) -> JobView | None:
        """One job now."""
        kept = await self._sought(job_id, owner)
        return None if kept is None else view_of(kept, self._now())

    def list(
        self, owner: str | None = None, *, after: str | None = None, limit: int | None = None
    ) -> Sequence[JobView]:
        """Jobs, the latest first; those older than the one called `after`. None where that is not there."""
        ids = [
            kept.id for kept in reversed(self._keeper.jobs.values()) if owner in (None, kept.details.owner)
        ]
        if after is not None:
            ids = ids[ids.index(JobId(after)) + 1 :] if after in ids else []
        now = self._now()
        return [view_of(self._keeper.jobs[job_id], now) for job_id in ids[:limit]]

    def overviews(self) -> Mapping[str | None, Overview]:
        """What a dashboard shows, by owner; under None all jobs together. Owners without jobs are missing."""
        return self._overviews.all(self._now())

    @property
    def elsewhere(self) -> Elsewhere:
        """What is known of the other nodes' part of the work."""
        return self._keeper.elsewhere

    @property
    def driven(self) -> int:
        """How many jobs this node takes through their life just now."""
        return sum(kept.driven for kept in self._keeper.jobs.values())

    def open(self, owner: str) -> Sequence[JobView]:
        """An owner's jobs that have not ended."""
        found = [kept for kept in self._keeper.jobs.values() if kept.stage not in ENDED]
        now = self._now()
        return [view_of(kept, now) for kept in found if kept.details.owner == owner]

    async def results(self, job_id: str, owner: str | None = None) -> AsyncIterator[bytes] | None:
        """The lines finished so far, of the output and the error file, by shard; read while it runs."""
        kept = await self._sought(job_id, owner)
        return None if kept is None else finished_lines(kept, self._queue, self._archive, self._files)

    # Changing

    async def create(self, new: NewJob) -> JobView:
        """Make a job of an uploaded file, which may be deleted from then on."""
        job = replace(new.job, id=new_job_id())
        await self._archive.keep_input(new.input, job.id)
        details = Details(
            owner=new.owner,
            input_file_id=new.input.id,
            endpoint=new.endpoint,
            completion_window=new.completion_window,
            window_s=new.window_s,
            expires_at=self._clock.wall() + new.window_s,
            metadata=new.metadata,
            output_expires_s=new.output_expires_s,
            rows_max=new.rows_max,
            model=job.model,
        )
        written = stored(details)
        created_at = await self._queue.create_job(job, written, priority=job.priority, weight=job.weight)
        kept = self._keeper.add(Kept(job, details, created_at, untouched=True, known=written))
        if self._sharing is not None:
            await self._sharing.wanted(kept)
        return view_of(kept, self._now())

    async def cancel(self, job_id: str, owner: str | None = None) -> JobView | None:
        """Send nothing more of it; what is finished is kept. Again, it changes nothing."""
        kept = await self._sought(job_id, owner)
        if kept is None:
            return None
        if kept.stage not in STOPPED:
            await self._keeper.move(kept, Event.CANCEL)
        return view_of(kept, self._now())

    async def pause(self, job_id: str, owner: str | None = None) -> JobView | None:
        """Send nothing more of it until `resume`; what is in flight ends. Its time goes on."""
        return await self._hold(job_id, owner, paused=True)

    async def resume(self, job_id: str, owner: str | None = None) -> JobView | None:
        """Go on with a paused job."""
        return await self._hold(job_id, owner, paused=False)

    async def change(self, job_id: str, changes: Changes, owner: str | None = None) -> JobView | None:
        """Change what a job is entitled to, for all requests that are sent from now on."""
        kept = await self._sought(job_id, owner)
        if kept is None:
            return None

        async def decide() -> None:
            _refuse_ended(kept, "changed")
            job = _changed(kept.job, changes)
            await self._queue.keeping.change(job, job.weight, before=kept.job)
            kept.job = job
            self._node.limit(kept.id, job.limit)
            self._node.expect(job)

        await self._keeper.roll.change(kept, decide)
        return view_of(kept, self._now())

    async def retry_failed(self, job_id: str, owner: str | None = None) -> JobView | None:
        """Send the failed requests of a job that has ended again, and those it did not come to.

        Its completion window begins anew; its files stay until there are new ones.
        """
        kept = await self._sought(job_id, owner)
        if kept is None:
            return None
        if kept.stage in ENDED and (kept.details.result is None or not kept.details.result.failed):
            raise IllegalMoveError(f"job {kept.id} has no failed requests")
        if kept.released or not self._archive.wants(kept.details, await self._files.names()):
            raise IllegalMoveError(
                f"job {kept.id}: its files were deleted, or its time is over, and its input gone"
            )
        await self._keeper.move(kept, Event.RETRY)
        if self._sharing is not None:
            await self._sharing.wanted(kept)
        return view_of(kept, self._now())

    async def delete(self, job_id: str, owner: str | None = None) -> bool:
        """Forget a job that has ended; its files stay until they are deleted. False where there is none."""
        kept = await self._sought(job_id, owner)
        if kept is None:
            return False
        await self._keeper.remove(kept)
        return True

    async def _hold(self, job_id: str, owner: str | None, *, paused: bool) -> JobView | None:
        kept = await self._sought(job_id, owner)
        if kept is None:
            return None

        async def decide() -> None:
            if kept.stage not in (Stage.VALIDATING, Stage.IN_PROGRESS, Stage.REOPENING):
                raise IllegalMoveError(f"job {kept.id} is {kept.stage}: it cannot be paused or resumed")
            was_paused = kept.details.paused
            await self._keeper.amend(kept, paused=paused)
            self._held(kept, was_paused=was_paused)

        await self._keeper.roll.change(kept, decide)
        return view_of(kept, self._now())

    def _held(self, kept: Kept, *, was_paused: bool) -> None:
        if kept.details.paused:
            self._node.withdraw(kept.id, at_once=False)
            return
        if was_paused:
            self._node.ledger.begin_rates(kept.id)
        self._node.welcome(kept.id)
        self._node.expect(kept.job)

    async def _sought(self, job_id: str, owner: str | None) -> Kept | None:
        """The job; one that another node has made just now as well."""
        if self._sharing is not None and JobId(job_id) not in self._keeper.jobs:
            await self._keeper.roll.look(JobId(job_id))
        return self._find(job_id, owner)

    def _find(self, job_id: str, owner: str | None) -> Kept | None:
        kept = self._keeper.jobs.get(JobId(job_id))
        return kept if kept is not None and owner in (None, kept.details.owner) else None

    def _now(self) -> Now:
        desk, monotonic = self._node.desk, self._clock.now()
        in_flight = Counter(self.elsewhere.in_flight)
        in_flight.update(attempt.item.lease.job.id for attempt in desk.open_attempts())
        standings = self._node.ledger.standings(desk.shards, monotonic)
        return Now(
            wall=self._clock.wall(),
            monotonic=monotonic,
            standings=self.elsewhere.joined(standings, self._keeper.jobs),
            in_flight=in_flight,
            held_up=self._node.held_up,
        )


def _refuse_ended(kept: Kept, what: str) -> None:
    if kept.stage in ENDED:
        raise IllegalMoveError(f"job {kept.id} is {kept.stage}: it cannot be {what}")


def _changed(job: Job, changes: Changes) -> Job:
    limit = None if changes.unlimited else job.limit if changes.limit is None else changes.limit
    priority = job.priority if changes.priority is None else changes.priority
    weight = job.weight if changes.weight is None else changes.weight
    return replace(job, priority=priority, weight=weight, limit=limit)
