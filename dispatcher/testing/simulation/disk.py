"""A disk that can be full, can die with its dispatcher, and can lose what was never synced.

The files are real ones in a directory of the simulation's, so that the journal's own reading and repairing is
put to the test; what is simulated is when bytes become safe, and what a crash leaves of them.
"""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from dispatcher.results.disk import LocalDisk
from dispatcher.testing.simulation.ledger import Ledger


@dataclass(slots=True)
class _File:
    path: Path
    synced: int
    """Bytes that no crash can take."""


class SimulatedDisk:
    """`results.Disk` of one dispatcher. A sync tells the ledger which rows' outcomes have become durable."""

    def __init__(self, name: str, ledger: Ledger, is_full: Callable[[], bool]) -> None:
        self.dead = False
        """Set when the dispatcher is killed: whatever it still does, nothing reaches the disk any more."""
        self._name = name
        self._ledger = ledger
        self._is_full = is_full
        self._disk = LocalDisk()
        self._files: dict[int, _File] = {}
        self._synced: dict[Path, int] = {}

    def open(self, path: Path) -> int:
        """See Disk. What a repair left in the file is durable: it syncs."""
        descriptor = self._disk.open(path)
        length = os.fstat(descriptor).st_size
        self._files[descriptor] = _File(path, self._synced.setdefault(path, length))
        return descriptor

    def append(self, descriptor: int, data: bytes) -> None:
        """See Disk."""
        if self.dead:
            return
        if self._is_full():
            self._disk.append(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._disk.append(descriptor, data)
        self._ledger.written.update(dict.fromkeys(_outcomes(data), self._name))
        self._ledger.note("written", self._name, data.count(b"\n"))

    def sync(self, descriptor: int) -> None:
        """See Disk."""
        if self.dead:
            return
        file = self._files[descriptor]
        length = os.fstat(descriptor).st_size
        with file.path.open("rb") as reader:
            reader.seek(file.synced)
            self._now_durable(reader.read(length - file.synced))
        file.synced = self._synced[file.path] = length
        self._ledger.note("synced", self._name, length)

    def sync_folder(self, folder: Path) -> None:
        """See Disk: here, names are safe when they are made."""

    def truncate(self, descriptor: int, length: int) -> None:
        """See Disk."""
        if self.dead:
            return
        self._disk.truncate(descriptor, length)
        file = self._files[descriptor]
        file.synced = self._synced[file.path] = min(file.synced, length)

    def close(self, descriptor: int) -> None:
        """See Disk."""
        self._disk.close(descriptor)
        del self._files[descriptor]

    def lose_power(self, random: Random) -> None:
        """Of what was written and never synced, keep a part that may end anywhere."""
        for path, synced in self._synced.items():
            length = path.stat().st_size
            if length > synced:
                os.truncate(path, random.randint(synced, length))

    def _now_durable(self, records: bytes) -> None:
        """Another dispatcher may have written into this file, too, and this one never have read it."""
        for index in _outcomes(records):
            writer = self._ledger.written.get(index, self._name)
            self._ledger.durable.setdefault(index, (writer, self._ledger.now()))


def _outcomes(records: bytes) -> Iterator[int]:
    """The rows whose outcomes these records are; what is held against a request is no outcome of it."""
    for record in records.split(b"\n")[:-1]:
        _, index, mark, _ = record.split(b"\t", 3)
        if mark != b"death":
            yield int(index)
