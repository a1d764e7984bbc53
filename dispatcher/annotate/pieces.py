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
    batch = _without_nanoseconds(batch)
    if any(_is_fine(kind) for kind in batch.schema.types):
        return _one_by_one(batch)
    try:
        rows: list[Row] = batch.to_pylist()
    except (ValueError, OverflowError, pa.ArrowInvalid):
        return _one_by_one(batch)
    return rows


def holds_lines(schema: pa.Schema) -> bool:
    """Whether a staged table's rows are JSON lines."""
    return (schema.metadata or {}).get(b"dispatcher.lines") == b"1"


def _without_nanoseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Python has no times of nanoseconds: they become texts."""
    for index, field in enumerate(batch.schema):
        if not pa.types.is_nested(field.type) and _is_fine(field.type):
            kind = pa.int64() if pa.types.is_duration(field.type) else pa.string()
            batch = batch.set_column(index, field.name, batch.column(index).cast(kind))
    return batch


def _is_fine(kind: pa.DataType) -> bool:
    """Whether values have nanoseconds, or parts that have: pyarrow has pandas' times for them, if it can."""
    if pa.types.is_dictionary(kind):
        return _is_fine(kind.value_type)
    if pa.types.is_nested(kind):
        return any(_is_fine(kind.field(number).type) for number in range(kind.num_fields))
    timely = pa.types.is_timestamp(kind) or pa.types.is_time64(kind) or pa.types.is_duration(kind)
    return bool(timely and kind.unit == "ns")


def _one_by_one(batch: pa.RecordBatch) -> list[Row]:
    """Rows of which Python cannot hold some value: a date in the year 30000, nanoseconds in a list."""
    columns = {name: [_value(cell) for cell in batch.column(name)] for name in batch.schema.names}
    return [{name: cells[index] for name, cells in columns.items()} for index in range(batch.num_rows)]


def _value(cell: pa.Scalar) -> Any:
    if not cell.is_valid:
        return None
    if pa.types.is_dictionary(cell.type):
        return _value(cell.value)
    return _parts(cell) if pa.types.is_nested(cell.type) else _leaf(cell)


def _parts(cell: pa.Scalar) -> Any:
    if pa.types.is_struct(cell.type):
        return {name: _value(part) for name, part in cell.items()}
    if pa.types.is_map(cell.type):
        return [(_value(pair["key"]), _value(pair["value"])) for pair in cell.values]
    return [_value(part) for part in cell.values]


def _leaf(cell: pa.Scalar) -> Any:
    if _is_fine(cell.type):
        return _text(cell)
    try:
        return cell.as_py()
    except (ValueError, OverflowError, pa.ArrowInvalid):
        return _text(cell)


def _text(cell: pa.Scalar) -> Any:
    """A time that Python has not. One in a zone that this machine does not know is told in UTC."""
    if pa.types.is_duration(cell.type):
        return cell.value
    try:
        return cell.cast(pa.string()).as_py()
    except pa.ArrowInvalid:
        return f"{cell.cast(pa.timestamp(cell.type.unit)).cast(pa.string()).as_py()}Z"
