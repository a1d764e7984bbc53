"""A directory of this machine, or one that several share: `ports.Store` over files."""

import asyncio
import fcntl
import os
import re
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from dispatcher.errors import MissingError, StorageError, TakenError
from dispatcher.ports import Stored
from dispatcher.storage.filesystem import ensure_writable, fsync_dir, storage_errors

UPLOAD: Final = ".upload"
"""Ends the names of what is not whole yet. It is listed, so that what a killed process left is found."""
LISTED_AT_ONCE: Final = 1000
_SEGMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Folder:
    """Keys as paths below a directory. Durable: files are synced, then renamed, and so is the name."""

    obstacle: str | None = None
    """A disk that refuses says so in each call's error."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def check(self) -> None:
        """Make the directory where it is missing. Raises StorageError where it cannot be written."""
        await asyncio.to_thread(ensure_writable, self._root)

    def path(self, key: str) -> Path:
        """See Store. Raises StorageError for what cannot be a file's name."""
        segments = key.split("/")
        if not all(_SEGMENT.fullmatch(segment) for segment in segments):
            raise StorageError(f"{key!r} cannot be the name of a file")
        return self._root.joinpath(*segments)

    @asynccontextmanager
    async def receive(self, key: str, bytes_max: int | None = None) -> AsyncIterator["_Receiving"]:  # noqa: ARG002  # the port's
        """See Store."""
        path = self.path(key)
        aside = path.with_name(path.name + UPLOAD)
        file = await asyncio.to_thread(_begun, aside)
        try:
            yield _Receiving(file, aside, path)
        finally:
            await asyncio.to_thread(_discard, file, aside)

    async def put(self, key: str, content: bytes, replaces: str | None = None) -> str:
        """See Store."""
        return await asyncio.to_thread(self._put, self.path(key), content, replaces)

    async def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """See Store."""
        return await asyncio.to_thread(_read, self.path(key), start, length)

    async def find(self, key: str) -> Stored | None:
        """See Store."""
        return await asyncio.to_thread(_found, self.path(key), key)

    async def delete(self, keys: Sequence[str]) -> None:
        """See Store."""
        await asyncio.to_thread(_remove, [self.path(key) for key in keys])

    async def list(self, folder: str) -> AsyncIterator[Stored]:
        """See Store."""
        found = _listed(self.path(folder), folder)
        while page := await asyncio.to_thread(_page, found):
            for stored in page:
                yield stored

    def _put(self, path: Path, content: bytes, replaces: str | None) -> str:
        aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}{UPLOAD}")
        file = _begun(aside)
        try:
            with storage_errors(path, "cannot be written"):
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                with self._alone():
                    version = self._put_in_place(aside, path, replaces)
        finally:
            _discard(file, aside)
        fsync_dir(path.parent)
        return version

    def _put_in_place(self, aside: Path, path: Path, replaces: str | None) -> str:
        if replaces is None:
            try:
                os.link(aside, path)
            except FileExistsError as error:
                raise TakenError(f"{path}: cannot be written: another has written there") from error
        else:
            found = _found(path, "")
            if found is None or found.version != replaces:
                raise TakenError(f"{path}: cannot be written: another has written there")
            aside.replace(path)
        written = _found(path, "")
        assert written is not None, "nobody else writes or removes it meanwhile"
        return written.version

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process compares and renames meanwhile, where the file system has locks."""
        descriptor = os.open(self._root / "lock-puts", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class _Receiving:
    """`ports.Incoming` for a file."""

    def __init__(self, file: BinaryIO, aside: Path, path: Path) -> None:
        self._file = file
        self._aside = aside
        self._path = path

    async def write(self, piece: bytes) -> None:
        """See Incoming."""
        with storage_errors(self._aside, "cannot be written"):
            await asyncio.to_thread(self._file.write, piece)

    async def keep(self) -> None:
        """See Incoming."""
        await asyncio.to_thread(self._keep)

    def _keep(self) -> None:
        with storage_errors(self._aside, "cannot be written"):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._aside.replace(self._path)
        fsync_dir(self._path.parent)


def _begun(aside: Path) -> BinaryIO:
    with storage_errors(aside, "cannot be written"):
        _make_folder(aside.parent)
        return aside.open("wb")


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    fsync_dir(folder.parent)


def _discard(file: BinaryIO, aside: Path) -> None:
    with suppress(OSError):  # a full disk refuses what is buffered: it is to be thrown away
        file.close()
    aside.unlink(missing_ok=True)


def _read(path: Path, start: int, length: int | None) -> bytes:
    with storage_errors(path, "cannot be read"):
        try:
            with path.open("rb") as file:
                file.seek(start)
                return file.read(-1 if length is None else length)
        except FileNotFoundError as error:
            raise MissingError(f"{path}: cannot be read: there is no such file") from error


def _remove(paths: list[Path]) -> None:
    for path in paths:
        with storage_errors(path, "cannot be removed"):
            path.unlink(missing_ok=True)


def _listed(root: Path, folder: str) -> Iterator[Stored]:
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            found = _found(path, f"{folder}/{path.relative_to(root)}")
            if found is not None:  # else it was removed meanwhile
                yield found


def _page(found: Iterator[Stored]) -> list[Stored]:
    return list(islice(found, LISTED_AT_ONCE))


def _found(path: Path, key: str) -> Stored | None:
    with storage_errors(path, "cannot be looked up"):
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
    version = f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"
    return Stored(key, found.st_size, found.st_mtime, version)
