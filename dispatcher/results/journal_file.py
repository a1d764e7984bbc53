"""One open journal: what of it is with the operating system, and what is safe from a power cut.

Plain blocking code over a Disk. An instance is used by one thread at a time.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from dispatcher.errors import StorageError
from dispatcher.results.disk import Disk, storage_errors


class Note(bytes):
    """A record that is no outcome: it is made durable like one, and not counted."""

    __slots__ = ()


class JournalFile:
    """A journal that records are appended to, and that loses none when the disk fails.

    A record is kept in memory until a sync of the file has succeeded. After a failed write the file is cut
    back to its last whole record. After a failed sync, nothing written since the last good one is believed
    to be there, whatever a second sync says (the kernel reports a lost page once, then calls it clean): the
    file is cut back to its synced length and the records are written again.
    """

    def __init__(self, path: Path, length: int, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._descriptor: int | None = None
        self._length = self._synced_length = length
        self._torn = False
        self._unwritten: list[bytes] = []
        self._unsynced: list[bytes] = []
        self._durable = 0

    @property
    def unwritten(self) -> bool:
        """Whether records wait to be written."""
        return bool(self._unwritten)

    @property
    def settled(self) -> bool:
        """Whether every record given is durable."""
        return not self._unwritten and not self._unsynced

    @property
    def owing(self) -> int:
        """How many of the given records are not durable yet."""
        return len(self._unwritten) + len(self._unsynced)

    def give(self, records: Sequence[bytes]) -> None:
        """Hand over encoded records, to be written in this order."""
        self._unwritten.extend(records)

    def take_durable(self) -> int:
        """How many outcomes have become durable since this was last asked."""
        durable, self._durable = self._durable, 0
        return durable

    def write(self) -> None:
        """Give what is unwritten to the operating system. Raises StorageError; then nothing has changed."""
        if not self._unwritten:
            return
        data = b"".join(self._unwritten)
        with self._storage_errors():
            self._append(self._opened(), data)
        self._length += len(data)
        self._unsynced += self._unwritten
        self._unwritten = []

    def sync(self) -> bool:
        """Make what is written durable; False where all of it is.

        Raises StorageError; then what was not durable is unwritten again.
        """
        if not self._unsynced:
            return False
        try:
            with self._storage_errors():
                self._sync(self._opened())
        except StorageError:
            self._write_again()
            raise
        self._synced_length = self._length
        self._durable += sum(type(record) is not Note for record in self._unsynced)
        self._unsynced = []
        return True

    def close(self) -> None:
        """Give the descriptor back. The next write opens the file again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # it is released all the same, and what counts was synced
                self._disk.close(descriptor)

    def _opened(self) -> int:
        if self._descriptor is None:
            self._descriptor = self._disk.open(self.path)
        return self._descriptor

    def _append(self, descriptor: int, data: bytes) -> None:
        self._cut_back(descriptor)
        self._torn = True
        try:
            self._disk.append(descriptor, data)
        except OSError:
            with contextlib.suppress(OSError):  # the next write tries again before it appends
                self._cut_back(descriptor)
            raise
        self._torn = False

    def _cut_back(self, descriptor: int) -> None:
        if self._torn:
            self._disk.truncate(descriptor, self._length)
            self._torn = False

    def _sync(self, descriptor: int) -> None:
        self._disk.sync(descriptor)
        if self._synced_length == 0:
            self._disk.sync_folder(self.path.parent)

    def _write_again(self) -> None:
        self._unwritten = self._unsynced + self._unwritten
        self._unsynced = []
        self._length = self._synced_length
        self._torn = True

    def _storage_errors(self) -> contextlib.AbstractContextManager[None]:
        return storage_errors(f"cannot write {self.path}")


class OpenFiles:
    """Bounds how many journals hold a descriptor: the least recently used one is synced and closed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._files: dict[JournalFile, None] = {}

    def admit(self, file: JournalFile) -> None:
        """Make room for a file that is about to be written. Raises StorageError."""
        self._files.pop(file, None)
        while len(self._files) >= self._limit:
            oldest = next(iter(self._files))
            oldest.sync()
            self.close(oldest)
        self._files[file] = None

    def close(self, file: JournalFile) -> None:
        """Close a file and count it no longer."""
        self._files.pop(file, None)
        file.close()

    def close_all(self) -> None:
        """Close every file."""
        for file in tuple(self._files):
            self.close(file)
