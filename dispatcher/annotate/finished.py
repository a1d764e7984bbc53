"""An output table that an earlier run has finished: whose it is, and what it holds."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from dispatcher.annotate.column_tables import open_arrow, open_parquet
from dispatcher.annotate.formats import TEXT, Format
from dispatcher.annotate.places import Place
from dispatcher.annotate.table_files import TableFile
from dispatcher.model import Tally
from dispatcher.storage.filesystem import atomic_write

MARK = b"dispatcher.mark"
"""Where a table with a schema says which input and settings it answers. Text formats have no place for it."""
MARK_BYTES_MAX = 64


def keep_mark(place: Place, kind: Format, mark: str) -> None:
    """Keep the mark of a file that has no place for it, in a hidden one beside it. Raises StorageError."""
    if kind in TEXT and place.file is not None and place.file.local is not None:
        atomic_write(_note(place.file.local), mark.encode())


def has_mark(place: Place, mark: str) -> bool:
    """Whether the table at this place was finished as this one. It may have been changed since."""
    if place.file is None or place.file.local is None:
        return False
    try:
        with _note(place.file.local).open("rb") as file:
            return file.read(MARK_BYTES_MAX) == mark.encode()
    except OSError:
        return False


def finished_tally(place: Place, kind: Format, mark: str, error_columns: Sequence[str]) -> Tally | None:
    """What a finished table's rows add up to; None where it is not, or may not be, the one of this mark.

    A row has failed where one of the `error_columns` is not null, and counts with the first such code.
    """
    if kind in TEXT or place.file is None:
        return None
    try:
        with _opened(place.file, kind, error_columns) as (schema, errors):
            if (schema.metadata or {}).get(MARK) != mark.encode():
                return None
            return _tally(errors, error_columns)
    except (pa.ArrowException, OSError, KeyError):
        return None


def _note(path: Path) -> Path:
    place = path.resolve()
    return place.with_name(f".{place.name}.finished")


@contextmanager
def _opened(
    file: TableFile, kind: Format, columns: Sequence[str]
) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    if kind is Format.PARQUET:
        with open_parquet(file) as table:
            yield table.schema_arrow, table.iter_batches(columns=list(columns), use_threads=False)
    else:
        with open_arrow(file) as source:
            reader = pa.ipc.open_file(source)
            yield reader.schema, (reader.get_batch(number) for number in range(reader.num_record_batches))


def _tally(batches: Iterator[pa.RecordBatch], columns: Sequence[str]) -> Tally:
    import pyarrow.compute as pc  # noqa: PLC0415  # 13 MB that a run need not have

    tally = Tally()
    for batch in batches:
        first = pc.coalesce(*(batch.column(column) for column in columns))
        codes = first.value_counts().to_pylist()
        errors = {each["values"]: each["counts"] for each in codes if each["values"] is not None}
        failed = sum(errors.values())
        tally += Tally(batch.num_rows - failed, failed, errors=errors)
    return tally
