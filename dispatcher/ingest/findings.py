"""What the scan finds out about a file, in bounded memory."""

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from dispatcher.errors import Fault, StorageError
from dispatcher.request_line import Head, LineFault

FAULTS_LISTED = 20
MODELS_COUNTED_MAX = 1000
OTHER_MODELS = "(other models)"
"""Stands for all models beyond the first thousand."""


@dataclass(frozen=True, slots=True)
class ScanReport:
    """What one pass over a file found."""

    rows: int
    """Requests: lines that are neither blank nor rejected."""
    lines: int
    """Non-blank lines, the rejected ones included. Indexes go from 0 to here."""
    blank: int
    bytes: int
    sha256: str
    """Of the file's bytes, in hex."""
    shards: int
    by_model: dict[tuple[str, str | None], int]
    """Requests by url and the body's own `model`; see OTHER_MODELS."""
    rejected: int
    """Lines that are no requests; also the number of faults."""
    faults: tuple[Fault, ...]
    """The first 20, by line."""

    @property
    def by_url(self) -> dict[str, int]:
        """Requests by url."""
        counts: Counter[str] = Counter()
        for (url, _), count in self.by_model.items():
            counts[url] += count
        return dict(counts)


class ModelCounts:
    """Requests by url and model, for a bounded number of models."""

    def __init__(self, models_max: int = MODELS_COUNTED_MAX) -> None:
        self.counts: dict[tuple[str, str | None], int] = {}
        self._models_max = models_max

    def add(self, head: Head, count: int = 1) -> None:
        """Count a request; with -1, take it back."""
        key = (head.url, head.model)
        if key not in self.counts and len(self.counts) >= self._models_max:
            key = (head.url, OTHER_MODELS)
        self.counts[key] = self.counts.get(key, 0) + count


class Rejections:
    """Counts rejected lines, keeps the first faults by line, and writes every one to the report, if any."""

    def __init__(self, report: BinaryIO | None) -> None:
        self.count = 0
        self._report = report
        self._first: list[tuple[int, str, str]] = []

    def add(self, line: int, fault: LineFault) -> None:
        """Keep one."""
        self.count += 1
        insort(self._first, (line, fault.message, fault.code.value))
        del self._first[FAULTS_LISTED:]
        if self._report is not None:
            rejected = _Rejected(line, fault.custom_id, fault.code, fault.message)
            with _writing(self._report.name):
                self._report.write(_REPORT_LINES.encode(rejected) + b"\n")

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The first 20, by line."""
        return tuple(Fault(f"line {line}", message, line, code) for line, message, code in self._first)


@contextmanager
def rejections(report_path: Path | None) -> Iterator[Rejections]:
    """Rejections that are written to a JSON lines file: `line`, `custom_id`, `code`, `message`.

    Repeated ids stand last there, since they are known last. Raises StorageError where it cannot be written.
    """
    if report_path is None:
        yield Rejections(None)
        return
    with _writing(str(report_path)):
        report = report_path.open("wb")
    try:
        yield Rejections(report)
    finally:
        with _writing(report.name):
            report.close()


@contextmanager
def _writing(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{name}: cannot write the rejected lines: {error.strerror}") from error


class _Rejected(msgspec.Struct, gc=False):
    line: int
    custom_id: str | None
    code: str
    message: str


_REPORT_LINES = msgspec.json.Encoder()
