"""Reading .gz and .zst as streams of bytes."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import zstandard

from dispatcher.errors import InputError, StorageError

_CHUNK_BYTES = 1 << 20
# A zstd block of 4 bytes can stand for 128 KiB: small pieces bound what one of them unfolds to.
_ZSTD_PIECE_BYTES = 8 << 10


class Compression(Enum):
    """How a file's bytes are packed."""

    NONE = ""
    GZIP = ".gz"
    ZSTD = ".zst"

    @classmethod
    def of(cls, name: str) -> "Compression":
        """By the name's ending: `.gz`, `.zst`, or none."""
        return next((kind for kind in (cls.GZIP, cls.ZSTD) if name.endswith(kind.value)), cls.NONE)


class Readable(Protocol):
    """Where packed bytes come from."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


@contextmanager
def reading(path: Path) -> Iterator[Iterator[bytes]]:
    """Open a file, packed or not, and give its bytes in chunks of about 1 MiB.

    Raises StorageError where it cannot be read and InputError where the archive is damaged.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    with file:
        yield unpacked(file, Compression.of(path.name), str(path))


def unpacked(file: Readable, compression: Compression, name: str) -> Iterator[bytes]:
    """The bytes that `file` holds, in chunks. Members or frames that follow each other are read as one.

    Raises StorageError where it cannot be read and InputError where the archive is damaged or ends too early;
    both name `name`.
    """
    chunks = {
        Compression.NONE: _plain,
        Compression.GZIP: _gunzipped,
        Compression.ZSTD: _unzstandarded,
    }[compression]
    try:
        yield from chunks(file)
    except EOFError as error:
        raise InputError(f"{name}: the archive ends too early; was it copied whole?") from error
    except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise InputError(f"{name}: not a whole {compression.value} archive: {error}") from error
    except OSError as error:
        raise StorageError(f"{name}: cannot be read: {error.strerror}") from error


def _plain(file: Readable) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


def _gunzipped(file: Readable) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=cast("BinaryIO", file), mode="rb") as archive:
        yield from _plain(archive)


def _unzstandarded(file: Readable) -> Iterator[bytes]:
    frame = None
    piece = file.read(_ZSTD_PIECE_BYTES)
    while piece:
        frame = frame or zstandard.ZstdDecompressor().decompressobj()
        if chunk := frame.decompress(piece):
            yield chunk
        piece = frame.unused_data
        if frame.eof:
            frame = None
        piece = piece or file.read(_ZSTD_PIECE_BYTES)
    if frame is not None:
        raise EOFError
