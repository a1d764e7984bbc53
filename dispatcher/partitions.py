"""Finding equal keys among any number of records in bounded memory.

Records are split by key into partitions, which go to disk past a size. Each partition is then swept: every
record is shown once, and those that the sweep has no room for are shown to the next. So ingest finds repeated
ids, and verify brings requests and outcomes together.
"""

import tempfile
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from dispatcher.errors import StorageError

PARTITIONS = 256
RECORDS_MAX = 131_072
"""Records in memory: 4 MiB at four integers a record."""

Record = tuple[int, ...]
"""Signed 64-bit integers. The first is the key."""


class Sweep(Protocol):
    """One pass over one partition's records, in the order in which they were added."""

    def take(self, record: Record) -> bool:
        """Look at a record. False defers it to another sweep; at least one must be taken."""

    def end(self) -> None:
        """No further records come."""


class Partitions:
    """Records by key, on disk past `records_max`. The files go when the context is left.

    Raises StorageError where `directory` cannot be written.
    """

    def __init__(self, directory: Path, width: int, records_max: int = RECORDS_MAX) -> None:
        self._folder = _make_folder(directory)
        self._records_max = records_max
        self._held = 0
        root = Path(self._folder.name)
        self._runs = [_Run(root / f"{number:03d}", width) for number in range(PARTITIONS)]
        self._deferred = (_Run(root / "deferred-0", width), _Run(root / "deferred-1", width))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the files."""
        self._folder.cleanup()

    def add(self, record: Record) -> None:
        """Keep a record of `width` integers."""
        self._runs[record[0] % PARTITIONS].recent.extend(record)
        self._held += 1
        if self._held >= self._records_max:
            self._spill()

    def sweep(self, start: Callable[[], Sweep]) -> None:
        """Show every record to sweeps: records with equal keys to the same ones, in the order of adding."""
        for run in self._runs:
            self._sweep_run(run, start)

    def _sweep_run(self, run: "_Run", start: Callable[[], Sweep]) -> None:
        shown, deferred = run, self._deferred[0]
        while not shown.empty:
            current = start()
            for record in shown:
                if not current.take(record):
                    deferred.append(record, self._records_max)
            current.end()
            shown.clear()
            shown, deferred = deferred, self._deferred[1 if deferred is self._deferred[0] else 0]

    def _spill(self) -> None:
        for run in self._runs:
            run.spill()
        self._held = 0


class _Run:
    """Records in the order of adding: older ones in a file, recent ones in memory."""

    def __init__(self, path: Path, width: int) -> None:
        self.recent = array("q")
        self._path = path
        self._width = width
        self._spilled = False

    @property
    def empty(self) -> bool:
        return not self.recent and not self._spilled

    def append(self, record: Record, records_max: int) -> None:
        self.recent.extend(record)
        if len(self.recent) >= records_max * self._width:
            self.spill()

    def spill(self) -> None:
        if not self.recent:
            return
        with _storage_errors(self._path), self._path.open("ab") as file:
            self.recent.tofile(file)
        self.recent = array("q")
        self._spilled = True

    def clear(self) -> None:
        self.recent = array("q")
        if self._spilled:
            with _storage_errors(self._path):
                self._path.unlink()
        self._spilled = False

    def __iter__(self) -> Iterator[Record]:
        if self._spilled:
            yield from self._from_file()
        yield from self._records(self.recent)

    def _from_file(self) -> Iterator[Record]:
        integers_max = self._width * 4096
        with _storage_errors(self._path):
            file = self._path.open("rb")
        with file:
            while block := self._block(file, integers_max):
                yield from self._records(block)

    def _block(self, file: BinaryIO, integers_max: int) -> "array[int]":
        block = array("q")
        # EOFError tells that the block is a short one; what there is was read.
        with _storage_errors(self._path), suppress(EOFError):
            block.fromfile(file, integers_max)
        return block

    def _records(self, integers: "array[int]") -> Iterator[Record]:
        return zip(*[iter(integers)] * self._width, strict=True)


def _make_folder(directory: Path) -> tempfile.TemporaryDirectory[str]:
    with _storage_errors(directory):
        return tempfile.TemporaryDirectory(prefix="partitions-", dir=directory)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: cannot keep intermediate data: {error.strerror}") from error
