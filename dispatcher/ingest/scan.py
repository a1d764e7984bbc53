"""The one streaming pass over an input: every line checked, shards cut, memory bounded."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from dispatcher.errors import InputError, StorageError
from dispatcher.ingest.findings import ModelCounts, Rejections, ScanReport, rejections
from dispatcher.ingest.sharding import DEFAULT_LIMITS, ScanLimits, Sharder
from dispatcher.ingest.unique import Ids, Repetition
from dispatcher.jsonl import CHUNK_BYTES, Line, split_lines
from dispatcher.model import Shard
from dispatcher.request_line import Head, LineCode, LineFault, parse_request, shown, too_long

SHARDS_HANDED_OVER = 256
INDEXES_HANDED_OVER = 10_000

_Item = TypeVar("_Item")


def scan(  # noqa: PLR0913  # three of them are whom it tells, and no two callers tell the same
    source: Path | BinaryIO,
    work_dir: Path,
    on_shards: Callable[[list[Shard]], None],
    *,
    on_repeated: Callable[[list[int]], None] | None = None,
    skip_invalid: bool = False,
    rejected_path: Path | None = None,
    limits: ScanLimits = DEFAULT_LIMITS,
    check: Callable[[], None] = lambda: None,
) -> ScanReport:
    """Check a JSON lines file and cut it into shards. Blocks: run it in a thread.

    `source` is its path, or the open file, which must have a `name` and be seekable; it is closed.
    Shards come in order, up to 256 a call; a line that is no request is in its shard's `rejected`. That an id
    repeats is known only at the end: the indexes of all but its first line then go to `on_repeated`, in any
    order, up to 10,000 a call; the `rejected` of their shards lack them. `check` is called several times a
    second, whatever the input. An exception from a callback ends the scan.

    Without `skip_invalid`, raises InputError at the end of the file where any line is no request, with the
    first 20 faults by line; shards handed over until then must not be run. Intermediate data goes to
    `work_dir`; what a killed process leaves there (`partitions-*`) may be deleted. `rejected_path` is written
    as `findings.rejections` describes. Raises StorageError where a file cannot be read or written.
    """
    digest = hashlib.sha256()
    with _opened(source) as file, rejections(rejected_path) as rejected, Ids(file, work_dir) as ids:
        reading = _Reading(limits, ids, rejected, _Batches(SHARDS_HANDED_OVER, on_shards))
        reading.lines(split_lines(_chunks(file, digest, check), limits.line_bytes_max))
        size = file.tell()
        reading.ids(_Batches(INDEXES_HANDED_OVER, on_repeated), check)
        report = reading.report(size, digest.hexdigest())
    if report.rejected and not skip_invalid:
        lines = "1 line is" if report.rejected == 1 else f"{report.rejected} lines are"
        raise InputError(f"{file.name}: {lines} no valid request", report.faults, report.rejected)
    return report


class _Reading:
    """Everything that is kept between lines."""

    def __init__(self, limits: ScanLimits, ids: Ids, rejected: Rejections, shards: "_Batches[Shard]") -> None:
        self._sharder = Sharder(limits)
        self._ids = ids
        self._rejected = rejected
        self._shards = shards
        self._route = limits.route
        self._models = ModelCounts()
        self._too_long = too_long(limits.line_bytes_max)
        self._blank = 0

    def lines(self, lines: Iterable[Line]) -> None:
        """Check each line by itself, and cut shards."""
        for line in lines:
            if line.blank:
                self._blank += 1
                continue
            found = self._too_long if line.content is None else parse_request(line.content)
            if self._route is not None and isinstance(found, Head) and found.url != self._route:
                found = _mismatched(found, self._route)
            if isinstance(found, LineFault):
                self._rejected.add(line.number, found)
            else:
                self._ids.add(found.custom_id, line, self._sharder.lines)
                self._models.add(found)
            self._shards.add(self._sharder.add(line, rejected=isinstance(found, LineFault)))
        for shard in self._sharder.finish():
            self._shards.add(shard)
        self._shards.deliver()

    def ids(self, indexes: "_Batches[int]", check: Callable[[], None]) -> None:
        """Reject every request but the first of an id."""

        def reject(repetition: Repetition) -> None:
            check()
            self._rejected.add(repetition.line, _repeated(repetition))
            self._models.add(repetition.head, -1)
            indexes.add(repetition.index)

        self._ids.repetitions(reject, check)
        indexes.deliver()

    def report(self, size: int, sha256: str) -> ScanReport:
        """What was found in the whole file."""
        lines = self._sharder.lines
        return ScanReport(
            rows=lines - self._rejected.count,
            lines=lines,
            blank=self._blank,
            bytes=size,
            sha256=sha256,
            shards=self._sharder.shards,
            by_model={key: count for key, count in self._models.counts.items() if count},
            rejected=self._rejected.count,
            faults=self._rejected.faults,
        )


class _Batches(Generic[_Item]):
    """Hands items over some at a time."""

    def __init__(self, size: int, deliver: Callable[[list[_Item]], None] | None) -> None:
        self._size = size
        self._deliver = deliver
        self._items: list[_Item] = []

    def add(self, item: _Item | None) -> None:
        if item is None or self._deliver is None:
            return
        self._items.append(item)
        if len(self._items) >= self._size:
            self.deliver()

    def deliver(self) -> None:
        if self._items and self._deliver is not None:
            self._deliver(self._items)
        self._items = []


def _mismatched(head: Head, route: str) -> LineFault:
    return LineFault(
        LineCode.URL_MISMATCHED,
        f"url is {shown(head.url)}; every line's must be the batch's endpoint, {shown(route)}",
        head.custom_id,
    )


def _repeated(repetition: Repetition) -> LineFault:
    custom_id = repetition.head.custom_id
    return LineFault(
        LineCode.CUSTOM_ID_DUPLICATE,
        f"custom_id {shown(custom_id)} is in line {repetition.first_line} already; "
        "give every line one of its own",
        custom_id,
    )


def _opened(source: Path | BinaryIO) -> BinaryIO:
    if not isinstance(source, Path):
        return source
    try:
        return source.open("rb")
    except OSError as error:
        raise StorageError(f"{source}: cannot be read: {error.strerror}") from error


def _chunks(file: BinaryIO, digest: "hashlib._Hash", check: Callable[[], None]) -> Iterator[bytes]:
    while True:
        check()
        try:
            chunk = file.read(CHUNK_BYTES)
        except OSError as error:
            raise StorageError(f"{file.name}: cannot be read: {error.strerror}") from error
        if not chunk:
            return
        digest.update(chunk)
        yield chunk
