"""Where a job's input comes from: a file in place, an archive, or standard input."""

import hashlib
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from dispatcher.compression import Compression, unpacked
from dispatcher.errors import InputError, StateError, StorageError
from dispatcher.storage.filesystem import replacing, storage_errors

STDIN = "-"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Which content an input had."""

    size: int
    """Bytes, of the file as the user gave it."""
    mtime_ns: int
    """0 for standard input."""
    sha256: str | None
    """Of those bytes, in hex. None until a file that is used in place has been read."""

    def with_content(self, sha256: str | None) -> "Fingerprint":
        """This fingerprint, completed by the hash that the scan took on its way, where it has none yet.

        An archive's has one: the scan reads what was in it, and not its bytes.
        """
        return self if self.sha256 is not None else replace(self, sha256=sha256)


@dataclass(frozen=True, slots=True)
class Source:
    """An input that is ready to be scanned."""

    path: Path
    """A plain JSON lines file."""
    fingerprint: Fingerprint
    name: str
    """What the user calls it."""


def prepare_source(
    name: str,
    state_dir: Path,
    stdin: BinaryIO | None = None,
    *,
    expected: Fingerprint | None = None,
    check_stopped: Callable[[], None] = lambda: None,
) -> Source:
    """Make a job's input a plain file. Blocks: run it in a thread.

    `name` is a path or `-`. A plain file is used in place, and not read here: its fingerprint has no `sha256`
    yet. A `.gz` or `.zst` file, standard input, and a pipe are written to `<state_dir>/input.jsonl`. With
    `expected`, the fingerprint of an earlier run, what that run wrote there is used again: standard input
    need not be given then, or may be empty. `check_stopped` is called between pieces of what is copied, and
    may raise to end it.

    Raises StateError where the input is not the expected one, and leaves what is there; InputError where
    there is no such file or the archive is damaged; StorageError where bytes cannot be read or written.
    """
    spool = _Spool(state_dir / "input.jsonl", expected, check_stopped)
    if name == STDIN:
        return spool.kept(name) if stdin is None else spool.fill(name, stdin, 0)
    path = Path(name)
    fingerprint = _stat(path)
    packed = Compression.of(path.name) is not Compression.NONE
    if path.is_file() and expected is not None:
        _require(fingerprint_matches(expected, path), name)
        fingerprint = fingerprint.with_content(expected.sha256)
        if packed and spool.path.exists():
            return Source(spool.path, fingerprint, name)
    if path.is_file() and not packed:
        return Source(path, fingerprint, name)
    with storage_errors(path, "cannot be read"):
        file = path.open("rb")
    with file:
        return spool.fill(name, file, fingerprint.mtime_ns if path.is_file() else 0)


def given_stdin() -> BinaryIO | None:
    """Standard input, unless it is a terminal, where nobody would type a million rows."""
    return None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer


def fingerprint_matches(expected: Fingerprint, path: Path) -> bool:
    """Whether a file still has the content it had. Blocks: run it in a thread.

    Equal size and modification time are taken for equality; otherwise the content is hashed. Raises
    InputError where there is no such file, and StorageError where it cannot be read.
    """
    now = _stat(path)
    if now.size != expected.size:
        return False
    if now.mtime_ns == expected.mtime_ns:
        return True
    with storage_errors(path, "cannot be read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == expected.sha256


class _Hashed:
    """A stream that hashes what is read from it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.size = 0
        self._stream = stream
        self._ahead = b""
        self._digest = hashlib.sha256()

    def at_end(self) -> bool:
        """Whether there is nothing to read."""
        self._ahead = self._ahead or self._stream.read(1)
        return not self._ahead

    def read(self, size: int, /) -> bytes:
        content = self._ahead or self._stream.read(size)
        self._ahead = b""
        self.size += len(content)
        self._digest.update(content)
        return content

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


class _Spool:
    """The plain copy of an input that cannot be used in place."""

    def __init__(self, path: Path, expected: Fingerprint | None, check_stopped: Callable[[], None]) -> None:
        self.path = path
        self._expected = expected
        self._check_stopped = check_stopped

    def fill(self, name: str, stream: BinaryIO, mtime_ns: int) -> Source:
        """Write what the stream holds; keep the earlier copy where it is not the expected input."""
        hashed = _Hashed(stream)
        if name == STDIN and hashed.at_end():
            return self.kept(name)  # /dev/null, as a batch system gives it: not an input of no rows
        with replacing(self.path) as file:
            for chunk in unpacked(hashed, Compression.of(name), name):
                self._check_stopped()
                file.write(chunk)
            _require(self._expected is None or hashed.sha256 == self._expected.sha256, name)
        return Source(self.path, Fingerprint(hashed.size, mtime_ns, hashed.sha256), name)

    def kept(self, name: str) -> Source:
        """The copy of an earlier run."""
        if self._expected is None or not self.path.exists():
            raise InputError("standard input is empty, and no earlier run has kept one; name a file")
        return Source(self.path, self._expected, name)


def _require(same: bool, name: str) -> None:  # noqa: FBT001 - it is the whole sentence
    if not same:
        raise StateError(
            f"{name}: not the input that this state directory was made for; "
            "give the original input, another --state-dir, or --restart to throw its answers away"
        )


def _stat(path: Path) -> Fingerprint:
    try:
        found = path.stat()
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path}: a directory; name a JSON lines file")
    return Fingerprint(found.st_size, found.st_mtime_ns, None)
