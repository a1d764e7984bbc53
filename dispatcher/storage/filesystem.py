"""The local file system: durable writes, the state directory's lock, and where it must not be."""

import errno
import fcntl
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from dispatcher.errors import StateError, StorageError

MOUNTS = Path("/proc/self/mountinfo")

NETWORK_TYPES = frozenset(
    {
        *(
            "9p",
            "acfs",
            "afs",
            "beegfs",
            "beegfs_nodev",
            "ceph",
            "cifs",
            "coda",
            "cvfs",
            "dvs",
            "fhgfs",
            "gfs",
        ),
        *(
            "gfs2",
            "glusterfs",
            "gpfs",
            "lustre",
            "mmfs",
            "ncpfs",
            "nfs",
            "nfs4",
            "ocfs2",
            "orangefs",
            "panfs",
        ),
        *("pvfs2", "smb3", "smbfs", "wekafs"),
    }
)
"""File systems whose locks or write order SQLite cannot rely on, by the kernel's names for them."""

NETWORK_FUSE_TYPES = frozenset(
    {
        *("alluxio-fuse", "beegfs", "blobfuse", "blobfuse2", "ceph", "cephfs", "cvmfs2", "davfs2", "gcsfuse"),
        *("glusterfs", "goofys", "juicefs", "mfs", "moosefs", "mount-s3", "objectivefs", "rclone", "s3fs"),
        *("seaweedfs", "sshfs"),
    }
)
"""The same behind FUSE, where the kernel says `fuse.NAME`."""


def network_filesystem(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the network file system that holds `path`, e.g. `nfs4`; None where it is a local one.

    Reads the format of proc_pid_mountinfo(5). Where that cannot be read nothing is known, and None returned.
    """
    kind = _filesystem_type(os.path.realpath(path), mounts)
    name = kind.removeprefix("fuse.")
    known = NETWORK_TYPES if name == kind else NETWORK_FUSE_TYPES
    return kind if name in known else None


class StateLock:
    """Makes this process the only user of a state directory, until the context is left or the process ends.

    Raises StateError, which names the holder, where it is in use; StorageError where it cannot be locked.
    The lock is the kernel's (flock): a killed process leaves none behind. Children that inherit its
    `descriptor` hold it as well; they end with their parent, and are waited for where that is gone.
    """

    def __init__(self, state_dir: Path, wall: Callable[[], float] = time.time) -> None:
        self._state_dir = state_dir
        self._wall = wall
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """What holds the lock, while it is held: a child that has it, too, keeps the lock for its life."""
        assert self._descriptor is not None, "the lock is not held"
        return self._descriptor

    def __enter__(self) -> Self:
        path = self._state_dir / "lock"
        with storage_errors(path, "cannot be locked"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self._take(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def _take(self, descriptor: int) -> None:
        until = time.monotonic() + _ORPHANS_S_MAX
        while not _locked(descriptor):
            holder = os.pread(descriptor, _HOLDER_BYTES_MAX, 0)
            gone = _is_gone(holder)
            if time.monotonic() >= until or not gone:
                left = "; that is dead, and its workers have not ended yet: try again" if gone else ""
                raise StateError(f"{self._state_dir} is in use by {_described(holder)}{left}")
            time.sleep(0.02)
        holder = msgspec.json.encode(_Holder(os.getpid(), socket.gethostname(), self._wall()))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder, 0)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def ensure_writable(directory: Path) -> None:
    """Make the directory where it is missing, and write and remove a byte there.

    Raises StorageError, so that a full disk or a missing right is known before the work and not after it.
    """
    probe = directory / f".writable-{os.getpid()}"
    with storage_errors(directory, "cannot be written"):
        directory.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(b"\n")
        finally:
            probe.unlink(missing_ok=True)


def atomic_write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Put a file in place, whole and durable, or leave the old one. Raises StorageError.

    `mode` says who may read it, as far as the process's umask lets them.
    """
    with replacing(path, mode) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Write a file aside; put it in place, durably, when the context is left without an exception.

    Raises StorageError for any OSError within.
    """
    aside = path.with_name(f"{path.name}.partial")
    with storage_errors(path, "cannot be written"):
        try:
            with open(aside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        fsync_dir(path.parent)


def fsync_dir(directory: Path) -> None:
    """Make the directory's names durable. Raises StorageError."""
    with storage_errors(directory, "cannot be synced"):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def storage_errors(path: Path, what: str) -> Iterator[None]:
    """Turn an OSError into a StorageError: `path`, `what`, the reason, and what can be done."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "")
        raise StorageError(f"{path}: {what}: {error.strerror or error}{advice}") from error


class _Holder(msgspec.Struct, frozen=True):
    pid: int
    host: str
    since: float


_HOLDER_BYTES_MAX = 4096
_ORPHANS_S_MAX = 10.0
"""How long the children of a killed holder may take to end."""
_ADVICE = {
    errno.ENOSPC: "; free some space, or use another directory",
    errno.EDQUOT: "; ask for more quota, or use another directory",
    errno.EROFS: "; use another directory",
    errno.EACCES: "; change its permissions, or use another directory",
    errno.EPERM: "; change its permissions, or use another directory",
    errno.ENOLCK: "; use a directory on a file system that has locks",
    errno.EOPNOTSUPP: "; use a directory on a file system that has locks",
}
_OCTAL = re.compile(r"\\([0-7]{3})")


def _read_holder(content: bytes) -> _Holder | None:
    try:
        return msgspec.json.decode(content, type=_Holder)
    except msgspec.MsgspecError:  # it has the lock and has not written its name yet
        return None


def _is_gone(content: bytes) -> bool:
    """Whether the process that took the lock is known to be dead: then only its children hold it."""
    holder = _read_holder(content)
    if holder is None or holder.host != socket.gethostname():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _described(content: bytes) -> str:
    holder = _read_holder(content)
    if holder is None:
        return "another process"
    since = datetime.fromtimestamp(holder.since, UTC).isoformat(timespec="seconds")
    return f"process {holder.pid} on {holder.host} since {since}"


def _filesystem_type(real_path: str, mounts: Path) -> str:
    longest, kind = "", ""
    with suppress(OSError):
        for line in mounts.read_text(errors="surrogateescape").splitlines():
            fields, _, source = line.partition(" - ")
            point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields.split(" ")[4])
            # A later mount on the same point hides the earlier.
            if len(point) >= len(longest) and os.path.commonpath((point, real_path)) == point:
                longest, kind = point, source.split(" ")[0]
    return kind
