"""What jobs need to be run, and what has been recorded of them: as the service uses it, wherever it lies."""

from collections.abc import AsyncIterator, Callable, Collection
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

from dispatcher.jobs.details import Details
from dispatcher.jobs.kept import Kept
from dispatcher.model import ErrorCode, Job, JobId, Shard, Tally
from dispatcher.ports import Payloads
from dispatcher.queue.keeping import FileRecord
from dispatcher.queue.records import ShardRecord
from dispatcher.results.journal import JournalContents

FILES = "files"
"""The folder of the store that uploaded and made files are in."""

Lacking = tuple[ErrorCode, str]
"""The outcome of requests that have none."""


def file_key(file_id: str) -> str:
    """Where the store has a file's bytes."""
    return f"{FILES}/{file_id}"


class Archive(Protocol):
    """Inputs and journals. Methods raise StorageError; those that say so block, and are for threads."""

    @property
    def payloads(self) -> Payloads:
        """Requests of every job, each from its own input."""

    async def open(self, jobs: Collection[JobId], making: Collection[str]) -> None:
        """Make what must be there, and remove what a killed process left: of jobs that are no more, say.

        `making` are files without a record that are still to be made.
        """

    async def keep_input(self, file: FileRecord, job: JobId) -> None:
        """Have the file's bytes for a job from now on, whatever becomes of the file."""

    def input(self, kept: Kept) -> AbstractContextManager[BinaryIO]:
        """A job's input, to be read from its start. Blocks. Raises InputError where it is gone."""

    async def contents(self, job: Job, shard: Shard, epoch: int | None) -> JournalContents:
        """A shard's journal: that of the lease that settled it, or the latest of one that is not settled."""

    async def take_back_failures(
        self, job: Job, shards: AsyncIterator[ShardRecord], check: Callable[[], None]
    ) -> None:
        """Remove failed outcomes from the journals of these shards, none of which is leased."""

    async def write(
        self,
        kept: Kept,
        shards: AsyncIterator[ShardRecord],
        lacking: Lacking | None,
        reader: Callable[[bytes], None],
        check: Callable[[], None],
    ) -> Tally:
        """Write the files that the job's details name, from its journals: those with a line in them.

        `reader` is shown each line of the output. Raises StateError where an outcome is missing and none is
        `lacking`. Ends soon after `check` has raised, and leaves nothing then.
        """

    async def release(self, kept: Kept) -> None:
        """Remove a job's journals, and its input where nobody else wants it: nobody can want the job."""

    async def is_read(self, file_id: str) -> bool:
        """Whether the bytes of this file must stay though it be deleted: jobs read them."""

    def wants(self, details: Details, names: AbstractSet[str]) -> bool:
        """Whether a job's input and journals may still be needed, where files of these names are there."""

    async def collect_garbage(self) -> None:
        """Remove what killed nodes have left, once it is old enough. Raises QueueError as well."""
