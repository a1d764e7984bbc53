"""A node's own copies of journals, one file a lease: `<directory>/<job>/000/000123.000007.journal`.

Plain blocking code. The file of a lease begins with what earlier leases have recorded.
"""

import math
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dispatcher.errors import MissingError
from dispatcher.model import Job, JobId, Lease, Shard
from dispatcher.results.checkpoints import Checkpoint
from dispatcher.results.disk import make_folder, replace_file, storage_errors, sync_folder
from dispatcher.results.journal import journal_path


class Copies:
    """The copies under a directory. Methods raise StorageError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path_of(self, lease: Lease) -> Path:
        """Where a lease's copy is."""
        return self._path(lease.job, lease.shard, lease.epoch)

    def begin(self, lease: Lease, found: tuple[Checkpoint, bytes] | None) -> bool:
        """Put in place what a lease goes on from: what was `found` in the store, or what this node has of it.

        Returns whether it is just what is in the store. The node's copy counts where it is of the same lease
        and has more at its end, or is of a later one, which was killed before it put anything into the store.
        """
        path = self.path_of(lease)
        content = b"" if found is None else found[1]
        with storage_errors(f"cannot write {path}"):
            own = self._own(lease.job, lease.shard, found, lease.epoch)
            if own is not None:
                content = own
            make_folder(path.parent)
            replace_file(path, content)
            for _, earlier in self._copies_of(lease.job, lease.shard, lease.epoch):
                earlier.unlink(missing_ok=True)
        return own is None and found is not None

    def newest(self, job: Job, shard: Shard, found: tuple[Checkpoint, bytes] | None) -> bytes:
        """The latest of a shard's journals: the one that was `found` in the store, or this node's."""
        with storage_errors(f"cannot read the journal of shard {shard.number} of job {job.id}"):
            own = self._own(job, shard, found)
        if own is not None:
            return own
        return b"" if found is None else found[1]

    def read(self, lease: Lease, known_bytes: int | None) -> bytes | None:
        """A lease's copy; None where it still has just the bytes that are known.

        Raises MissingError where it is not there: no journal at all is not an empty one.
        """
        path = self.path_of(lease)
        with storage_errors(f"cannot read {path}"):
            try:
                return None if path.stat().st_size == known_bytes else path.read_bytes()
            except FileNotFoundError as error:
                raise MissingError(f"{path}: this journal was removed while it was written") from error

    def remove(self, lease: Lease) -> None:
        """Remove a lease's copy, durably: the store has the whole of it, and may go on from there."""
        path = self.path_of(lease)
        with storage_errors(f"cannot remove {path}"), suppress(FileNotFoundError):
            path.unlink()
            sync_folder(path.parent)

    def remove_all(self, job: JobId) -> None:
        """Remove every copy of a job's journals."""
        shutil.rmtree(self._directory / job, ignore_errors=True)

    def jobs(self) -> set[JobId]:
        """The jobs that there are copies of."""
        found = self._directory.iterdir() if self._directory.is_dir() else ()
        return {JobId(folder.name) for folder in found}

    def _own(
        self, job: Job, shard: Shard, found: tuple[Checkpoint, bytes] | None, below: float = math.inf
    ) -> bytes | None:
        latest = max(self._copies_of(job, shard, below), default=None)
        if latest is None:
            return None
        epoch, path = latest
        if found is None:
            return path.read_bytes()
        checkpoint, content = found
        if checkpoint.epoch > epoch or (checkpoint.epoch == epoch and checkpoint.reopened):
            return None
        own = path.read_bytes()
        # Within a lease a journal only grows, so that the store's is the beginning of ours.
        same = checkpoint.epoch == epoch and own.startswith(content)
        return own if same or checkpoint.epoch < epoch else None

    def _copies_of(self, job: Job, shard: Shard, below: float) -> Iterator[tuple[int, Path]]:
        for found in self._path(job, shard, 0).parent.glob(f"{shard.number:06}.*.journal"):
            epoch = found.name.split(".")[1]
            if epoch.isdigit() and int(epoch) < below:
                yield int(epoch), found

    def _path(self, job: Job, shard: Shard, epoch: int) -> Path:
        return journal_path(self._directory, job, shard).with_suffix(f".{epoch:06}.journal")
