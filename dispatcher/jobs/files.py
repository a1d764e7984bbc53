"""Uploaded and made files: their bytes in a store, their records in the queue's database."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from dispatcher.errors import MissingError, StorageError
from dispatcher.jobs.archive import file_key
from dispatcher.jobs.ids import new_file_id
from dispatcher.ports import Clock, Incoming, Store
from dispatcher.queue.keeping import FileRecord, FilesWanted, Keeping

CHUNK_BYTES = 8 << 20
"""Read at once."""


class Upload:
    """A file on its way in: `write` what comes, then `keep` it. Left unkept, nothing of it stays."""

    def __init__(self, files: "Files", file_id: str, incoming: Incoming) -> None:
        self.bytes = 0
        self._files = files
        self._id = file_id
        self._incoming = incoming

    async def write(self, chunk: bytes) -> None:
        """Append. Raises StorageError."""
        self.bytes += len(chunk)
        await self._incoming.write(chunk)

    async def keep(self, owner: str, filename: str, purpose: str, expires_s: int | None) -> FileRecord:
        """Make it durable, and a file. Raises StorageError and QueueError."""
        await self._incoming.keep()
        return await self._files.keep(self._id, owner, filename, purpose, expires_s)


async def _nobody(_file_id: str) -> bool:
    return False


class Files:
    """The files of every owner. Times are seconds since the epoch, by the clock's `wall()`.

    Args:
        store: Has the bytes.
        keeping: Has the records.
        clock: For what expires.
        needed: Tells whether the bytes of a file must stay though it be removed, for jobs read them.
        files_kept_s: How long files are kept that do not say so themselves; None: until they are removed.
    """

    def __init__(
        self,
        store: Store,
        keeping: Keeping,
        clock: Clock,
        *,
        needed: Callable[[str], Awaitable[bool]] = _nobody,
        files_kept_s: float | None = None,
    ) -> None:
        self._store = store
        self._keeping = keeping
        self._clock = clock
        self._needed = needed
        self._files_kept_s = files_kept_s
        self._log = structlog.get_logger("dispatcher.files")

    @asynccontextmanager
    async def receive(self, bytes_max: int | None = None) -> AsyncIterator[Upload]:
        """Begin an upload, of so many bytes at most. Raises StorageError."""
        file_id = new_file_id()
        async with self._store.receive(file_key(file_id), bytes_max) as incoming:
            yield Upload(self, file_id, incoming)

    async def keep(
        self, file_id: str, owner: str, filename: str, purpose: str, expires_s: int | None
    ) -> FileRecord:
        """Keep a file whose bytes are in place."""
        record = await self.described(file_id, owner, filename, purpose, expires_s)
        await self._keeping.add_file(record)
        return record

    async def described(
        self, file_id: str, owner: str, filename: str, purpose: str, expires_s: int | None
    ) -> FileRecord:
        """The record of bytes that are in place."""
        found = await self._store.find(file_key(file_id))
        if found is None:
            raise StorageError(f"{file_key(file_id)}: it was removed while it was being kept")
        now, kept_s = self._clock.wall(), self._files_kept_s if expires_s is None else expires_s
        expires_at = None if kept_s is None else now + kept_s
        return FileRecord(file_id, owner, filename, purpose, found.size, now, expires_at)

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
        """Forget a file, then remove its bytes: a crash between the two leaves bytes that are no file.

        Those that a job reads stay until it is over. Raises QueueError, and StorageError where bytes stay.
        """
        await self._keeping.remove_file(file_id)
        if not await self._needed(file_id):
            await self._store.delete([file_key(file_id)])

    async def remove_expired(self) -> None:
        """Remove the files whose time is over."""
        for file_id in await self._keeping.files_expired(self._clock.wall()):
            await self.remove(file_id)
            self._log.info("file_expired", file=file_id)

    async def names(self) -> set[str]:
        """The ids of all files."""
        return await self._keeping.file_ids()

    def path(self, record: FileRecord) -> Path | None:
        """Where its bytes are a file of this machine; None where they are no file."""
        return self._store.path(file_key(record.id))

    async def chunks(self, file_id: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """A file's bytes from `start` up to `end`, some at a time. None of one that was removed."""
        found = await self._store.find(file_key(file_id))
        size = 0 if found is None else found.size
        end = size if end is None else min(end, size)
        with suppress(MissingError):
            while start < end:
                chunk = await self._store.read(file_key(file_id), start, min(CHUNK_BYTES, end - start))
                yield chunk
                start += len(chunk)

    def _is_over(self, record: FileRecord) -> bool:
        return record.expires_at is not None and record.expires_at <= self._clock.wall()
