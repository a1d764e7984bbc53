"""Ids of rows: what they are, and whether each is there once."""

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Self

from dispatcher.annotate.faults import Faults, RowError, place
from dispatcher.annotate.pieces import Row
from dispatcher.partitions import Partitions, Record

REPETITIONS_MAX = 100_000
"""Rows whose ids are taken: more are not counted."""


def row_id(row: Row, column: str) -> str:
    """What a row is called. Raises RowError where it is no text and no whole number."""
    if column not in row:
        raise RowError("there is no such column", column)
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise RowError("no id: neither a text nor a whole number", column)
    return str(value)


class Ids:
    """Whether each id is there once, in bounded memory: by 126 bits of a hash."""

    def __init__(self, work_dir: Path) -> None:
        self._records = Partitions(work_dir, 4)
        self._files: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._records.close()

    def add(self, name: str, file: str, number: int) -> None:
        """Take a row's id."""
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        halves = (int.from_bytes(digest[:8]) >> 1, int.from_bytes(digest[8:]) >> 1)
        self._records.add((*halves, self._files.setdefault(file, len(self._files)), number))

    def report(self, faults: Faults) -> None:
        """Add a fault for every row whose id an earlier row has."""
        files = list(self._files)
        found: list[tuple[int, int, int, int]] = []
        self._records.sweep(lambda: _FirstSeen(found))
        for file, number, first_file, first in sorted(found):
            message = f"an id that {place(files[first_file], first)} has already"
            faults.add(files[file], number, RowError(message))


class _FirstSeen:
    def __init__(self, found: list[tuple[int, int, int, int]]) -> None:
        self._found = found
        self._first: dict[tuple[int, ...], Record] = {}

    def take(self, record: Record) -> bool:
        first = self._first.setdefault(record[:2], record)
        if first is not record and len(self._found) < REPETITIONS_MAX:
            self._found.append((record[2], record[3], first[2], first[3]))
        return True

    def end(self) -> None:
        self._first.clear()
