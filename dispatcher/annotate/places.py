"""Where a table is written: to a file, into an object store, to standard output."""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from dispatcher.annotate.table_files import LocalFile, RemoteFile, TableFile, open_remote
from dispatcher.errors import InputError, StorageError
from dispatcher.results.finalise import check_writable
from dispatcher.storage.filesystem import replacing, storage_errors


class Place(Protocol):
    """Where a table is put, whole or not at all. Every method blocks, and raises StorageError."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def file(self) -> TableFile | None:
        """What is there, to be read; None where nothing can be."""

    def check(self) -> None:
        """Find out before the work what would be wrong after it."""

    def exists(self) -> bool:
        """Whether something is there already."""

    def writing(self) -> AbstractContextManager[BinaryIO]:
        """Write it; it is in place when the context is left without an exception."""


class LocalPlace:
    """A file of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self.file = LocalFile(path)

    def check(self) -> None:
        """See Place."""
        check_writable(self.path)

    def exists(self) -> bool:
        """See Place."""
        return self.path.exists()

    def writing(self) -> AbstractContextManager[BinaryIO]:
        """See Place."""
        return replacing(self.path.resolve())


class RemotePlace:
    """An object of a store. A store shows an object when all of it is there."""

    def __init__(self, url: str) -> None:
        self.name = url

    @property
    def file(self) -> TableFile:
        """See Place. Each is what is there at the time."""
        return RemoteFile(self.name)

    def check(self) -> None:
        """See Place. Whether it may be written is not known before it is."""
        self.exists()

    def exists(self) -> bool:
        """See Place."""
        try:
            open_remote(self.name).find()
        except InputError:
            return False
        return True

    def writing(self) -> AbstractContextManager[BinaryIO]:
        """See Place."""
        return open_remote(self.name).writing()


class StandardOutput:
    """Standard output. A table is written aside first: Parquet needs a file, and a half of one helps nobody.

    Args:
        stream: It; None where it is not to be had.
        aside: Where the table is meanwhile.
    """

    name = "standard output"
    file = None

    def __init__(self, stream: BinaryIO | None, aside: Path) -> None:
        self._stream = stream
        self._aside = aside

    def check(self) -> None:
        """See Place."""
        if self._stream is None:
            raise StorageError("standard output is not to be had here; name a file")

    def exists(self) -> bool:
        """See Place. What went there is gone."""
        return False

    @contextmanager
    def writing(self) -> Iterator[BinaryIO]:
        """See Place."""
        assert self._stream is not None, "it was looked for"
        with storage_errors(self._aside, "cannot be written"), self._aside.open("w+b") as file:
            yield file
            file.seek(0)
            try:
                shutil.copyfileobj(file, self._stream)
                self._stream.flush()
            except OSError as error:
                raise StorageError(f"{self.name}: cannot be written: {error.strerror}") from error
        self._aside.unlink(missing_ok=True)
