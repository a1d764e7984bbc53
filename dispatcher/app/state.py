"""One job in one state directory: made once, continued ever after, refused where it is another job's."""

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from dispatcher.app.errand import Errand
from dispatcher.app.files import answers_mark
from dispatcher.app.work import Prepared, Work
from dispatcher.config import Config
from dispatcher.errors import InputError, StateError, StorageError
from dispatcher.model import Job, JobId, Shard
from dispatcher.ports import Clock
from dispatcher.queue.records import JobRecord, JobStatus
from dispatcher.queue.sql import SqlQueue, open_queue
from dispatcher.results.finalise import drop_failed
from dispatcher.storage.filesystem import StateLock, ensure_writable, network_filesystem

LOCK_NAME = "lock"
DATABASE = "queue.sqlite"
DATABASE_NAMES = frozenset(f"{DATABASE}{ending}" for ending in ("", "-wal", "-shm", "-journal"))
STEPS = "steps"
"""The folder of the states of several steps, one for each, in that of the whole."""
OWN_NAMES = DATABASE_NAMES | {
    *("journal", "work", "input.jsonl", "input.jsonl.partial"),
    *("table", "input.table", "input.table.partial", "output.table", STEPS),
}
"""What a run makes in its state directory, beside the lock. Nothing else there is ever removed."""


@dataclass(frozen=True, slots=True)
class OpenJob:
    """A job that is ready to run, locked to this process."""

    queue: SqlQueue
    prepared: Prepared
    record: JobRecord
    lock: StateLock


@asynccontextmanager
async def open_job(
    config: Config, work: Work, clock: Clock, check_stopped: Callable[[], None], workers: int = 1
) -> AsyncIterator[OpenJob]:
    """Continue the state directory's job, or make one from the input. So many `workers` are to use it.

    `check_stopped` is called now and then while the input is read, and may raise to end it. Raises StateError
    where the directory is in use, of another input, of other settings or of a newer version, or cannot be
    used by several processes; InputError for an input that cannot be run, in which case nothing is left
    behind.
    """
    state = work.files.state
    try:
        await asyncio.to_thread(ensure_writable, state)
    except StorageError as error:  # nothing has begun: not a run to resume, but a setting to change
        raise StateError(str(error)) from error
    with StateLock(state) as lock:
        if config.run.restart:
            await asyncio.to_thread(clear_state, state)
        try:
            async with _queue(config, state, clock, workers) as queue:
                preparation = _Preparation(config, work, queue, lock, check_stopped)
                yield await preparation.opened()
        except InputError:
            await asyncio.to_thread(_clear_unless_kept, state)
            raise


def remove_state(state: Path) -> None:
    """Remove a job's state, and its directory where that is empty then. Blocks.

    A directory that holds other things, or is a mount point, a link or `.`, is the user's and stays.
    """
    clear_state(state)
    (state / LOCK_NAME).unlink(missing_ok=True)
    with suppress(OSError):
        state.rmdir()


def clear_state(state: Path) -> None:
    """Remove what runs have made in the state directory, but for the lock that we hold in it. Blocks."""
    for path in state.iterdir():
        if path.name not in OWN_NAMES:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@asynccontextmanager
async def _queue(config: Config, state: Path, clock: Clock, workers: int) -> AsyncIterator[SqlQueue]:
    kind = await asyncio.to_thread(network_filesystem, state)
    if kind is not None and workers > 1:
        raise StateError(
            f"{state} is on a network file system ({kind}), where only one process may use the queue: give a "
            "--state-dir on a local disk, or --workers 1"
        )
    if kind is not None:
        structlog.get_logger("dispatcher.state").warning(
            "state_on_network_filesystem", filesystem=kind, path=str(state), journal_mode="delete"
        )
    async with open_queue(
        state / DATABASE, clock, lease_s=config.queue.lease_s, network_filesystem=kind is not None
    ) as queue:
        yield queue


class _Preparation:
    """The way from a state directory and an input to a job that can run."""

    def __init__(
        self,
        config: Config,
        work: Work,
        queue: SqlQueue,
        lock: StateLock,
        check_stopped: Callable[[], None],
    ) -> None:
        self._config = config
        self._work = work
        self._files = work.files
        self._queue = queue
        self._lock = lock
        self._check_run = check_stopped
        self._errand = Errand()

    def _check_stopped(self) -> None:
        self._check_run()
        self._errand.check()

    async def opened(self) -> OpenJob:
        """The earlier run's job, or a new one."""
        for record in await self._queue.jobs():
            if record.status is not JobStatus.PREPARING:
                return await self._continued(record)
            await self._queue.discard_job(record.job.id)
        return await self._made()

    async def _continued(self, record: JobRecord) -> OpenJob:
        self._refuse_other_settings(record)
        prepared = await self._prepared(record.details["input"])
        await self._queue.release_all()
        record = replace(record, job=self._job(record.job.id, prepared.sha256))
        await self._queue.set_job(record.job)
        if self._config.run.retry_failed:
            record = await self._retry_failed(record)
        return OpenJob(self._queue, prepared, record, self._lock)

    def _refuse_other_settings(self, record: JobRecord) -> None:
        before: Mapping[str, Any] = record.details["settings"]
        now = self._work.settings
        changed = [name for name in now if now[name] != before.get(name)]
        if record.rejected == 0 and "run.on_invalid" in changed:
            changed.remove("run.on_invalid")
        if changed:
            listed = "; ".join(
                f"{name} was {before.get(name)!r} and is now {now[name]!r}" for name in changed
            )
            raise StateError(
                f"{self._files.state} holds a run with other settings: {listed}. Run it with those, or give "
                "--restart to throw its answers away"
            )

    async def _retry_failed(self, record: JobRecord) -> JobRecord:
        """Reopen first, drop after: a crash between the two loses nothing, and the user asks again."""
        job = record.job
        await self._queue.reopen(job.id, only_failed=True)
        async for unsettled in self._queue.shards(job.id, settled=False):
            await asyncio.to_thread(drop_failed, job, unsettled.shard, self._files.journals)
        await self._queue.activate(job.id)
        reopened = await self._queue.job(job.id)
        assert reopened is not None, "the job was there a moment ago"
        return reopened

    async def _made(self) -> OpenJob:
        prepared = await self._prepared(None)
        job = self._job(JobId(secrets.token_hex(6)), prepared.sha256)
        details = {"settings": self._work.settings, "input": prepared.fingerprint}
        await self._queue.create_job(job, details)
        await self._ingest(job.id, prepared)
        if job.mark != self._mark(prepared.sha256):
            await self._queue.set_details(job.id, {**details, "input": prepared.fingerprint})
            await self._queue.set_job(self._job(job.id, prepared.sha256))
        await self._queue.activate(job.id)
        record = await self._queue.job(job.id)
        assert record is not None, "the job was made a moment ago"
        return OpenJob(self._queue, prepared, record, self._lock)

    def _job(self, job_id: JobId, sha256: str | None) -> Job:
        run, dispatch = self._config.run, self._config.dispatch
        return Job(
            id=job_id,
            max_attempts=dispatch.max_attempts,
            request_timeout_s=dispatch.request_timeout_s,
            model=run.model,
            model_override=run.model_override,
            provenance=self._config.results.provenance,
            mark=self._mark(sha256),
        )

    def _mark(self, sha256: str | None) -> str:
        return answers_mark(sha256, self._work.settings)

    async def _prepared(self, earlier: Mapping[str, Any] | None) -> Prepared:
        return await self._errand.do(lambda: self._work.prepare(earlier, self._check_stopped))

    async def _ingest(self, job_id: JobId, prepared: Prepared) -> None:
        loop = asyncio.get_running_loop()
        work = self._files.state / "work"

        def add_shards(shards: list[Shard]) -> None:
            self._check_stopped()
            asyncio.run_coroutine_threadsafe(self._queue.add_shards(job_id, shards), loop).result()

        def reject(indexes: list[int]) -> None:
            asyncio.run_coroutine_threadsafe(self._queue.reject(job_id, indexes), loop).result()

        def run() -> None:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            try:
                prepared.ingest(work, add_shards, reject)
            finally:
                shutil.rmtree(work, ignore_errors=True)

        await self._errand.do(run)


def _clear_unless_kept(state: Path) -> None:
    """An input that cannot be run leaves no state behind, unless an earlier run's answers are there."""
    if not (state / "journal").exists():
        remove_state(state)
