"""Whether every `custom_id` is there once: exact, in bounded memory.

Each id leaves a 64-bit hash and the place of its line. Equal hashes are no verdict: both lines are read
again, so a collision is never taken for a repetition.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from dispatcher.errors import StorageError
from dispatcher.jsonl import Line
from dispatcher.partitions import RECORDS_MAX, Partitions, Record
from dispatcher.request_line import Head, parse_request


@dataclass(frozen=True, slots=True)
class Repetition:
    """A request whose `custom_id` stood in an earlier line already."""

    first_line: int
    line: int
    index: int
    head: Head


class Ids:
    """The ids of one file, to be asked once for repetitions, after the file was read.

    Raises StorageError where `work_dir` cannot be written or the file has changed.
    """

    def __init__(
        self,
        file: BinaryIO,
        work_dir: Path,
        *,
        records_max: int = RECORDS_MAX,
        # Python's own hash of a string is quick and keyed at random, so nobody can aim at collisions.
        hash_id: Callable[[str], int] = hash,
    ) -> None:
        self._file = file
        self._records_max = records_max
        self._hash_id = hash_id
        self._records = Partitions(work_dir, 4, records_max)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._records.close()

    def add(self, custom_id: str, line: Line, index: int) -> None:
        """Keep the id of a request. `index` counts non-blank lines from 0."""
        self._records.add((self._hash_id(custom_id), line.offset, line.number, index))

    def repetitions(
        self, report: Callable[[Repetition], None], check: Callable[[], None] = lambda: None
    ) -> None:
        """Report each request but the first of an id. The order is that of hashes, not of lines.

        `check` is called for each part of the ids, of `records_max` at most.
        """

        def start() -> _FirstSeen:
            check()
            return _FirstSeen(self._file, self._records_max, report)

        self._records.sweep(start)


class _FirstSeen:
    """A sweep that keeps the first line of each hash and compares the others with it."""

    def __init__(self, file: BinaryIO, records_max: int, report: Callable[[Repetition], None]) -> None:
        self._file = file
        self._records_max = records_max
        self._report = report
        self._first: dict[int, Record] = {}

    def take(self, record: Record) -> bool:
        key, offset, line, index = record
        first = self._first.get(key)
        if first is None:
            return self._keep(record)
        earlier, head = self._head(first[1]), self._head(offset)
        if earlier.custom_id != head.custom_id:
            return False
        self._report(Repetition(first[2], line, index, head))
        return True

    def end(self) -> None:
        self._first.clear()

    def _keep(self, record: Record) -> bool:
        room = len(self._first) < self._records_max
        if room:
            self._first[record[0]] = record
        return room

    def _head(self, offset: int) -> Head:
        self._file.seek(offset)
        head = parse_request(self._file.readline().removesuffix(b"\n"))
        if not isinstance(head, Head):
            raise StorageError(f"{self._file.name}: the line at byte {offset} has changed while it was read")
        return head
