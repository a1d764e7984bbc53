"""One file of a table, wherever it is: on this machine, in an object store."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from dispatcher.errors import StorageError

if TYPE_CHECKING:
    from dispatcher.storage.remote import Found, Remote


class TableFile(Protocol):
    """A file that can be read again and again. Every method blocks; raises StorageError and InputError."""

    @property
    def name(self) -> str:
        """What it is called in messages. Its ending says how it is packed."""

    @property
    def local(self) -> Path | None:
        """Where it is on this machine; None where it is elsewhere."""

    def open(self) -> BinaryIO:
        """Its bytes, here and there."""

    def stamp(self) -> list[Any]:
        """What it is known by again, as JSON: another one where it was written anew."""


@dataclass(frozen=True)
class LocalFile:
    """A file of this machine."""

    path: Path
    called: str | None = None
    """In messages; None: by its path."""

    @property
    def name(self) -> str:
        """See TableFile."""
        return self.called or str(self.path)

    @property
    def local(self) -> Path | None:
        """See TableFile."""
        return self.path

    def open(self) -> BinaryIO:
        """See TableFile."""
        try:
            return self.path.open("rb")
        except OSError as error:
            raise StorageError(f"{self.name}: cannot be read: {error.strerror}") from error

    def stamp(self) -> list[Any]:
        """See TableFile."""
        try:
            found = self.path.stat()
        except OSError as error:
            raise StorageError(f"{self.name}: cannot be read: {error.strerror}") from error
        return [self.name, found.st_size, found.st_mtime_ns]


@dataclass(frozen=True)
class RemoteFile:
    """An object of a store, as it was when it was first looked at: another version is refused."""

    name: str

    local = None

    def open(self) -> BinaryIO:
        """See TableFile."""
        return self._remote.open(self._found)

    def stamp(self) -> list[Any]:
        """See TableFile."""
        return [self.name, self._found.size, self._found.version]

    @cached_property
    def _remote(self) -> "Remote":
        return open_remote(self.name)

    @cached_property
    def _found(self) -> "Found":
        return self._remote.find()


def is_remote(name: str) -> bool:
    """Whether this names something in an object store, as `s3://bucket/key` does."""
    if "://" not in name:
        return False
    from dispatcher.storage import opening  # noqa: PLC0415  # 7 MB that a run on files need not have

    return opening.is_remote(name)


def open_remote(url: str) -> "Remote":
    """An object of a store. Raises StorageError where the URL is of no use."""
    from dispatcher.storage.remote import Remote  # noqa: PLC0415  # as above

    return Remote(url)
