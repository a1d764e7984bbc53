"""A few rows of a table on their way in, with where they stand."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

LINE = "line"
LINES_SCHEMA = pa.schema([pa.field(LINE, pa.large_binary())], {"dispatcher.lines": "1"})
"""JSON lines are kept as they are: no type is forced on them that they do not have."""

Row = dict[str, Any]
PIECE_BYTES_MAX = 8 << 20
"""Of rows in memory at a time, unless a single one is larger."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of one file."""

    file: str
    numbers: Sequence[int]
    """Each row's number in its file, from 1: of JSON lines the line's, else without the header."""
    batch: pa.RecordBatch
    rows: Sequence[Row] | None = None
    """The rows, where reading them has decoded them already."""


def rows_of(batch: pa.RecordBatch, columns: Collection[str] | None = None) -> list[Row]:
    """A batch of columns as rows, of these columns only; None: all. Columns it has not are left out."""
    if columns is not None:
        batch = batch.select([name for name in batch.schema.names if name in columns])
    if not batch.num_columns:
        return [{} for _ in range(batch.num_rows)]
    rows: list[Row] = _without_nanoseconds(batch).to_pylist()
    return rows


def holds_lines(schema: pa.Schema) -> bool:
    """Whether a staged table's rows are JSON lines."""
    return (schema.metadata or {}).get(b"dispatcher.lines") == b"1"


def _without_nanoseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Python has no times of nanoseconds: they become texts."""
    for index, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type) or pa.types.is_time64(field.type):
            fine = field.type.unit == "ns"
        else:
            fine = pa.types.is_duration(field.type) and field.type.unit == "ns"
        if fine:
            kind = pa.int64() if pa.types.is_duration(field.type) else pa.string()
            batch = batch.set_column(index, field.name, batch.column(index).cast(kind))
    return batch
