"""The few things that recording asks of a disk, so that a test can make each of them fail."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from dispatcher.errors import StorageError


class Disk(Protocol):
    """Files that only grow at their end. Every method blocks, and raises OSError."""

    def open(self, path: Path) -> int:
        """A descriptor that appends to the file; makes the file and its folders where they are missing."""

    def append(self, descriptor: int, data: bytes) -> None:
        """Write all of `data`. Where this fails, any part of it may have been written."""

    def sync(self, descriptor: int) -> None:
        """Make everything appended so far survive a power cut. Once failed, it proves nothing any more."""

    def sync_folder(self, folder: Path) -> None:
        """Make the names of the files in a folder survive a power cut."""

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut the file to `length` bytes."""

    def close(self, descriptor: int) -> None:
        """Give the descriptor back."""


class LocalDisk:
    """The disk of this machine."""

    def open(self, path: Path) -> int:
        """See Disk."""
        make_folder(path.parent)
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def append(self, descriptor: int, data: bytes) -> None:
        """See Disk."""
        write_all(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """See Disk."""
        os.fsync(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """See Disk."""
        sync_folder(folder)

    def truncate(self, descriptor: int, length: int) -> None:
        """See Disk."""
        os.ftruncate(descriptor, length)

    def close(self, descriptor: int) -> None:
        """See Disk."""
        os.close(descriptor)


@contextlib.contextmanager
def storage_errors(failure: str, advice: str = "") -> Iterator[None]:
    """Translate OSError to StorageError: "<failure>: <the system's reason>; <advice>"."""
    try:
        yield
    except OSError as exc:
        ending = f"; {advice}" if advice else ""
        raise StorageError(f"{failure}: {exc.strerror or exc}{ending}") from exc


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte of `data`, however many calls that takes. Raises OSError."""
    with memoryview(data) as view:
        written = 0
        while written < len(view):
            written += os.write(descriptor, view[written:])


def sync_folder(folder: Path) -> None:
    """Make the names of the files in a folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder, and durably so, with the ones above it. Raises OSError."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    sync_folder(folder.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` in the file's place, durably: a reader sees the old file or the new one, never a part.

    The new bytes go to `<name>.partial` first; a crash may leave that behind, and the next call starts it
    afresh. Raises OSError.
    """
    partial = partial_of(path)
    try:
        write_new(partial, data)
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    sync_folder(path.parent)


def partial_of(path: Path) -> Path:
    """Where a file is written until it is whole: beside it, so that a rename can put it in place."""
    return path.with_name(path.name + ".partial")


def write_new(path: Path, data: bytes) -> None:
    """Write a file from its start, and sync it. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
