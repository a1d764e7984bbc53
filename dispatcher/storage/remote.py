"""Single objects by their URL, for code that blocks: read here and there or as a stream, written as one."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, cast

import obstore

from dispatcher.errors import InputError, StorageError
from dispatcher.storage.opening import is_remote, open_store, refusals

if TYPE_CHECKING:
    from obstore import GetOptions, WritableFile
    from typing_extensions import Buffer

READ_BYTES: Final = 8 << 20
"""Asked for at once where a stream is read; a single range otherwise."""
BUFFER_BYTES: Final = 1 << 20
"""Read ahead of what was asked for, where an object is read here and there."""
PART_BYTES: Final = 32 << 20
"""Of a multipart upload. S3 takes 10,000 parts, so that an object may have 320 GB."""
PARTS_AT_ONCE: Final = 2
"""Parts held in memory while they are sent."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object as the store has it now."""

    url: str
    size: int
    """Bytes."""
    version: str
    """Changes with every writing of it: its ETag, or where there is none the time of that."""
    etag: str | None


class Remote:
    """One object. Blocks: use it in a thread.

    Every request is sent again for up to two minutes where the store is not available. The methods raise
    StorageError, which names the object and never holds credentials.

    Args:
        url: `s3://bucket/key`, `gs://bucket/key`, `az://container/key`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        parent, _, self._key = url.rpartition("/")
        if not is_remote(url) or parent.endswith("/") or not self._key:
            raise StorageError(f"{url}: no object of a store; give a URL like s3://bucket/folder/name")
        self._store = open_store(parent, retries=True)

    def find(self) -> Found:
        """What is there now. Raises InputError where there is no such object."""
        with refusals(self.url, "cannot be looked up"):
            try:
                meta = obstore.head(self._store, self._key)
            except FileNotFoundError:
                raise InputError(f"{self.url}: there is no such object") from None
        version = meta["e_tag"] or meta["last_modified"].isoformat()
        return Found(self.url, meta["size"], version, meta["e_tag"])

    def open(self, found: Found | None = None) -> BinaryIO:
        """The object as a file that can be read here and there; each read past the buffer is a range request.

        Raises as `find`, unless it is given what that `found`. Where the object is written anew meanwhile,
        the next read raises StorageError.
        """
        return cast("BinaryIO", io.BufferedReader(_Reading(self, found or self.find()), BUFFER_BYTES))

    def chunks(self, found: Found | None = None) -> Iterator[bytes]:
        """The object from its start, 8 MiB at a time. Raises as `open`."""
        found, start = found or self.find(), 0
        while start < found.size:
            piece = self.read(found, start, READ_BYTES)
            start += len(piece)
            yield piece

    def read(self, found: Found, start: int, length: int) -> bytes:
        """Up to `length` bytes from `start`; none at the end. Raises StorageError where it has changed."""
        end = min(start + length, found.size)
        if start >= end:
            return b""
        options: GetOptions = {"range": (start, end)}
        if found.etag is not None:
            options["if_match"] = found.etag
        with refusals(self.url, "cannot be read"):
            return bytes(obstore.get(self._store, self._key, options=options).bytes())

    @contextmanager
    def writing(self) -> Iterator[BinaryIO]:
        """A file to be written from start to end; it is there, whole, when the context is left.

        Left by an exception, nothing of it stays, and what was there before is there still.
        """
        writer = obstore.open_writer(
            self._store, self._key, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )
        with _Writing(writer, self.url) as raw:
            file = io.BufferedWriter(raw, BUFFER_BYTES)
            yield cast("BinaryIO", file)
            file.flush()

    def remove(self) -> None:
        """Remove the object; without any it is no error."""
        with refusals(self.url, "cannot be removed"):
            try:
                obstore.delete(self._store, self._key)
            except FileNotFoundError:
                return


class _Reading(io.RawIOBase):
    def __init__(self, remote: Remote, found: Found) -> None:
        super().__init__()
        self.name = remote.url
        self._remote = remote
        self._found = found
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._found.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: "Buffer", /) -> int:
        view = memoryview(buffer).cast("B")
        piece = self._remote.read(self._found, self._at, len(view))
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class _Writing(io.RawIOBase):
    """Sends what is written; left by an exception, has it thrown away."""

    def __init__(self, writer: "WritableFile", url: str) -> None:
        super().__init__()
        self.name = url
        self._writer = writer
        self._written = 0

    def __exit__(self, *raised: object) -> None:
        with refusals(self.name, "cannot be written"):
            self._writer.__exit__(*raised)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, piece: "Buffer", /) -> int:
        with refusals(self.name, "cannot be written"):
            self._writer.write(bytes(piece))
        self._written += memoryview(piece).nbytes
        return memoryview(piece).nbytes
