"""A finished job's journals joined into the output file and the error file, in input order."""

import contextlib
import os
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dispatcher.errors import StateError, StorageError
from dispatcher.model import Job, Outcome, Shard, Tally
from dispatcher.results.disk import partial_of, storage_errors, sync_folder, write_all
from dispatcher.results.journal import (
    JournalContents,
    Record,
    journal_path,
    owed,
    read_journal,
    record_of,
    replace_journal,
    without_failures,
)

_ADVICE: Final = "free some space or choose another place: nothing is sent twice when it is tried again"


def check_outputs_writable(output: Path, errors: Path) -> None:
    """Find out before a job runs whether its files can be written after it.

    Raises StorageError where the two would overwrite each other, a folder is missing or closed to us, or
    something stands in the place that is no regular file.
    """
    if _written(output) & _written(errors):
        raise StorageError(f"{output} and {errors} would overwrite each other; choose another --errors")
    for path in (output, errors):
        check_writable(path)


def check_writable(path: Path) -> None:
    """Find out before the work whether a file can be written after it. Raises StorageError."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise StorageError(f"cannot write {path}: there is no directory {folder}; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageError(f"cannot write {path}: no permission to make files in {folder}")
    if path.exists() and not path.is_file():
        raise StorageError(f"cannot write {path}: it exists, and is not a regular file")


Unfinished = Callable[[Shard, AbstractSet[int]], Iterable[Outcome]]
"""What becomes of a shard's requests, by index, that have no outcome."""


def finalise(
    job: Job,
    shards: Iterable[Shard],
    directory: Path,
    output: Path,
    errors: Path,
    unfinished: Unfinished | None = None,
    reader: Callable[[bytes], None] | None = None,
) -> Tally:
    """Write a job's output and error files from its journals. Blocks; memory holds one shard at a time.

    Both files are written aside and synced before either takes its place, the error file first: whoever sees
    the output file can rely on both. The journals are only read, so that after a crash at any point the
    same call does it again. Where no request failed there is no error file, as OpenAI's `error_file_id` is
    null then, and one that an earlier run left in its place is removed.

    Args:
        job: The job.
        shards: All of its shards, in order.
        directory: Where its recorder keeps the journals.
        output: The file for successes. Written even if there are none.
        errors: The file for failures.
        unfinished: Makes the outcomes of requests that have none: of a job that was cancelled, say.
        reader: Shown each line of the output as it is written.

    Raises StateError where an outcome is missing, and `unfinished` makes none; StorageError where the disk
    refuses. What stood in the files' places stands there still, unless it is the renaming that failed, and
    nothing is left aside.
    """
    check_outputs_writable(output, errors)
    tally = Tally()
    with _Aside(output) as successes, _Aside(errors) as failures:
        for shard in shards:
            contents = finished_journal(job, shard, directory, unfinished)
            _write(contents, successes, failures)
            if reader is not None:
                for record in contents.outcomes.values():
                    if record.ok:
                        reader(record.line)
            tally += contents.tally
        _put_in_place(successes, failures, tally)
    return tally


def drop_failed(job: Job, shard: Shard, directory: Path) -> int:
    """Take a shard's failed outcomes out of its journal, so that their requests are sent again.

    What was held against these requests goes with them: whoever asks for them again wants a fresh start.
    Returns how many outcomes there were. The journal is replaced atomically; it must not be open. Raises
    StorageError.
    """
    path = journal_path(directory, job, shard)
    records = read_journal(path, shard).records
    failed = sum(record.failed for record in records)
    if failed:
        with storage_errors(f"cannot write {path}"):
            replace_journal(path, without_failures(records))
    return failed


def _written(path: Path) -> set[Path]:
    resolved = path.resolve()
    return {resolved, partial_of(resolved)}


def finished_journal(
    job: Job, shard: Shard, directory: Path, unfinished: Unfinished | None = None
) -> JournalContents:
    """The journal of a shard that has all its outcomes. Raises StateError where one is missing; StorageError.

    `unfinished` makes the outcomes of requests that have none.
    """
    path = journal_path(directory, job, shard)
    return completed(job, shard, read_journal(path, shard), str(path), unfinished)


def completed(
    job: Job, shard: Shard, contents: JournalContents, name: str, unfinished: Unfinished | None = None
) -> JournalContents:
    """What a journal holds, with the outcomes that are made up where there is none. Raises StateError."""
    missing = set(owed(shard)) - contents.outcomes.keys()
    if missing and unfinished is not None:
        made = tuple(record_of(outcome, job) for outcome in unfinished(shard, missing))
        contents = replace(contents, records=contents.records + made)
        missing -= contents.outcomes.keys()
    if missing:
        raise StateError(
            f"shard {shard.number} is not finished: {name} lacks {len(missing)} of {shard.requests} outcomes,"
            f" the first that of request {min(missing)}; resume the job to have them made"
        )
    return contents


def _write(contents: JournalContents, successes: "_Aside", failures: "_Aside") -> None:
    output, errors = lines_of(contents)
    successes.write(output)
    failures.write(errors)


def lines_of(contents: JournalContents) -> tuple[bytes, bytes]:
    """A shard's lines of the output file and of the error file, in order."""
    records = sorted(contents.outcomes.values(), key=lambda record: record.index)
    return _lines(record for record in records if record.ok), _lines(
        record for record in records if record.failed
    )


def _put_in_place(successes: "_Aside", failures: "_Aside", tally: Tally) -> None:
    successes.sync()
    failures.sync()
    if tally.failed:
        failures.put_in_place()
    else:
        failures.clear_place()
    successes.put_in_place()


def _lines(records: Iterable[Record]) -> bytes:
    return b"".join(record.line + b"\n" for record in records)


class _Aside:
    """A file being written beside its place. Leaving the context without having put it there removes it."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self._partial = partial_of(self._path)

    def __enter__(self) -> Self:
        with self._storage_errors():
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._descriptor = os.open(self._partial, flags, 0o666)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # what counts was synced; else the error that led here is the one
            os.close(self._descriptor)
        with contextlib.suppress(OSError):
            self._partial.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        with self._storage_errors():
            write_all(self._descriptor, data)

    def sync(self) -> None:
        with self._storage_errors():
            os.fsync(self._descriptor)

    def put_in_place(self) -> None:
        with self._storage_errors():
            self._partial.replace(self._path)
            sync_folder(self._path.parent)

    def clear_place(self) -> None:
        with self._storage_errors():
            self._path.unlink(missing_ok=True)
            sync_folder(self._path.parent)

    def _storage_errors(self) -> contextlib.AbstractContextManager[None]:
        return storage_errors(f"cannot write {self._path}", _ADVICE)
