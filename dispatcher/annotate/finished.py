"""An output table that an earlier run has finished: whose it is, and what it holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dispatcher.annotate.formats import Format
from dispatcher.model import Tally

MARK = b"dispatcher.mark"
"""Where a table with a schema says which input and settings it answers. Text formats have no place for it."""


def finished_tally(path: Path, kind: Format, mark: str, error_column: str) -> Tally | None:
    """What a finished table's rows add up to; None where it is not, or may not be, the one of this mark."""
    if kind not in (Format.PARQUET, Format.ARROW):
        return None
    try:
        with _opened(path, kind, error_column) as (schema, errors):
            if (schema.metadata or {}).get(MARK) != mark.encode():
                return None
            return _tally(errors, error_column)
    except (pa.ArrowException, OSError, KeyError):
        return None


@contextmanager
def _opened(path: Path, kind: Format, column: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    if kind is Format.PARQUET:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            yield file.schema_arrow, file.iter_batches(columns=[column], use_threads=False)
    else:
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            yield reader.schema, (reader.get_batch(number) for number in range(reader.num_record_batches))


def _tally(batches: Iterator[pa.RecordBatch], column: str) -> Tally:
    tally = Tally()
    for batch in batches:
        codes = batch.column(column).value_counts().to_pylist()
        errors = {each["values"]: each["counts"] for each in codes if each["values"] is not None}
        failed = sum(errors.values())
        tally += Tally(batch.num_rows - failed, failed, errors=errors)
    return tally
