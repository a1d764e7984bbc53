"""Where in the storage directory things lie."""

import re
import shutil
from collections.abc import Collection
from pathlib import Path

from dispatcher.errors import StorageError
from dispatcher.model import JobId
from dispatcher.storage.filesystem import storage_errors

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


class Places:
    """The storage directory's layout. Ids become file names here and nowhere else, and only if they may."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.queue = root / "queue.sqlite"
        self.journals = root / "journals"
        self.servers = root / "servers.json"
        self.work = root / "work"
        self.folders = (root / "files", root / "inputs", self.journals, self.work)
        """What must be there before anything is kept; the files first."""

    def make_scratch(self) -> None:
        """Make what a node needs that keeps nothing here. Raises StorageError."""
        for folder in (self.journals, self.work):
            with storage_errors(folder, "cannot be made"):
                folder.mkdir(parents=True, exist_ok=True)

    def file(self, file_id: str) -> Path:
        """The bytes of an uploaded or a made file."""
        return self.folders[0] / _checked(file_id)

    def journals_of(self, job: JobId) -> Path:
        """A job's journals."""
        return self.journals / _checked(job)

    def input_of(self, job: JobId) -> Path:
        """A job's input: a link to its file, so that deleting the file does not take it away."""
        return self.folders[1] / _checked(job)

    def remove_file(self, file_id: str) -> None:
        """Remove the bytes of a file; without any it is no error. Raises StorageError."""
        _remove(self.file(file_id))

    def remove(self, job: JobId) -> None:
        """Remove what a job needs to be run: its journals and its input. Raises StorageError."""
        shutil.rmtree(self.journals_of(job), ignore_errors=True)
        _remove(self.input_of(job))

    def remove_strangers(self, jobs: Collection[JobId]) -> None:
        """Remove what is left of other jobs: a killed process did not come to make, or remove, all of it."""
        for folder in (self.folders[1], self.journals):
            for path in folder.iterdir():
                if path.name not in jobs and _ID.fullmatch(path.name):
                    self.remove(JobId(path.name))


def _remove(path: Path) -> None:
    with storage_errors(path, "cannot be removed"):
        path.unlink(missing_ok=True)


def _checked(name: str) -> str:
    if not _ID.fullmatch(name):
        raise StorageError(f"{name!r} cannot be the name of a file")
    return name
