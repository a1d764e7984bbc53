"""Uploaded and made files: their bytes in the storage directory, their records in the queue's database."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

import structlog

from dispatcher.jobs.ids import new_file_id
from dispatcher.jobs.places import Places
from dispatcher.ports import Clock
from dispatcher.queue.keeping import FileRecord, FilesWanted, Keeping
from dispatcher.storage.filesystem import fsync_dir, storage_errors

UPLOAD = ".upload"
"""Ends the names of what is not whole yet."""


class Upload:
    """A file on its way in: `write` what comes, then `keep` it. Left unkept, nothing of it stays."""

    def __init__(self, files: "Files", file_id: str, path: Path, file: BinaryIO) -> None:
        self.bytes = 0
        self._files = files
        self._id = file_id
        self._path = path
        self._file = file

    async def write(self, chunk: bytes) -> None:
        """Append. Raises StorageError."""
        self.bytes += len(chunk)
        await asyncio.to_thread(self._write, chunk)

    async def keep(self, owner: str, filename: str, purpose: str, expires_s: int | None) -> FileRecord:
        """Make it durable, and a file. Raises StorageError and QueueError."""
        await asyncio.to_thread(self._settle)
        return await self._files.keep(self._id, owner, filename, purpose, expires_s)

    def _write(self, chunk: bytes) -> None:
        with storage_errors(self._path, "cannot be written"):
            self._file.write(chunk)

    def _settle(self) -> None:
        with storage_errors(self._path, "cannot be written"):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._path.replace(self._path.with_suffix(""))
        fsync_dir(self._path.parent)


class Files:
    """The files of every owner. Times are seconds since the epoch, by the clock's `wall()`."""

    def __init__(self, places: Places, keeping: Keeping, clock: Clock) -> None:
        self._places = places
        self._keeping = keeping
        self._clock = clock
        self._log = structlog.get_logger("dispatcher.files")

    async def open(self, needed: Iterable[str]) -> Self:
        """Make the folders, and remove what a killed process left: bytes that are no file of ours.

        `needed` are names of files that are still being made. Raises StorageError.
        """
        known = await self._keeping.file_ids() | set(needed)
        await asyncio.to_thread(self._tidy, known)
        return self

    @asynccontextmanager
    async def receive(self) -> AsyncIterator[Upload]:
        """Begin an upload. Raises StorageError."""
        file_id = new_file_id()
        path = self._places.file(file_id).with_suffix(UPLOAD)
        with storage_errors(path, "cannot be written"):
            file = await asyncio.to_thread(path.open, "wb")
        try:
            yield Upload(self, file_id, path, file)
        finally:
            await asyncio.to_thread(_discard, file, path)

    async def keep(
        self, file_id: str, owner: str, filename: str, purpose: str, expires_s: int | None
    ) -> FileRecord:
        """Keep a file whose bytes are in place."""
        record = await asyncio.to_thread(self.described, file_id, owner, filename, purpose, expires_s)
        await self._keeping.add_file(record)
        return record

    def described(
        self, file_id: str, owner: str, filename: str, purpose: str, expires_s: int | None
    ) -> FileRecord:
        """The record of bytes that are in place. Blocks."""
        path = self._places.file(file_id)
        with storage_errors(path, "cannot be read"):
            size = path.stat().st_size
        now = self._clock.wall()
        expires_at = None if expires_s is None else now + expires_s
        return FileRecord(file_id, owner, filename, purpose, size, now, expires_at)

    async def get(self, file_id: str, owner: str | None) -> FileRecord | None:
        """The file, if it is there and the owner's; `owner` None is everybody's."""
        record = await self._keeping.file(file_id)
        if record is None or owner not in (None, record.owner):
            return None
        return None if self._is_over(record) else record

    async def list(self, wanted: FilesWanted) -> Sequence[FileRecord]:
        """A page of files by age."""
        return await self._keeping.list_files(wanted, self._clock.wall())

    async def remove(self, file_id: str) -> None:
        """Forget a file, then remove its bytes: a crash between the two leaves bytes that `open` removes.

        Raises QueueError, and StorageError where the bytes stay.
        """
        await self._keeping.remove_file(file_id)
        await asyncio.to_thread(self._places.remove_file, file_id)

    async def remove_expired(self) -> None:
        """Remove the files whose time is over."""
        for file_id in await self._keeping.files_expired(self._clock.wall()):
            await self.remove(file_id)
            self._log.info("file_expired", file=file_id)

    async def names(self) -> set[str]:
        """The ids of all files."""
        return await self._keeping.file_ids()

    def path(self, record: FileRecord) -> Path:
        """Where its bytes are."""
        return self._places.file(record.id)

    def _is_over(self, record: FileRecord) -> bool:
        return record.expires_at is not None and record.expires_at <= self._clock.wall()

    def _tidy(self, known: set[str]) -> None:
        for folder in self._places.folders:
            with storage_errors(folder, "cannot be made"):
                folder.mkdir(exist_ok=True)
        for path in self._places.folders[0].iterdir():
            if path.name not in known and path.is_file():
                path.unlink(missing_ok=True)


def _discard(file: BinaryIO, path: Path) -> None:
    with suppress(OSError):  # a full disk refuses what is buffered: it is to be thrown away
        file.close()
    path.unlink(missing_ok=True)
