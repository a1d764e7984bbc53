"""Reading Parquet and Arrow IPC: a few rows at a time, whatever a row group or a batch holds."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pyarrow as pa
import pyarrow.parquet as pq

from dispatcher.annotate.faults import table_error
from dispatcher.annotate.pieces import PIECE_BYTES_MAX, Piece
from dispatcher.annotate.table_files import TableFile
from dispatcher.errors import StorageError

BUFFER_BYTES = 1 << 20


def read_parquet(file: TableFile, rows_max: int) -> Iterator[Piece]:
    """The rows of a Parquet file, in pieces. Raises InputError where it is damaged."""
    row = 0
    with _reading(file.name, "Parquet") as at, open_parquet(file) as table:
        _check_names(file.name, table.schema_arrow)
        size = _rows_of_few_bytes(table.metadata, rows_max)
        for batch in table.iter_batches(batch_size=size, use_threads=False):
            _check_cells(file.name, batch, row)
            yield Piece(file.name, range(row + 1, row + batch.num_rows + 1), batch)
            at.row = row = row + batch.num_rows


def read_arrow(file: TableFile, rows_max: int) -> Iterator[Piece]:
    """The rows of an Arrow IPC file or stream (Feather 2, Hugging Face), in pieces. Raises InputError."""
    row = 0
    with _reading(file.name, "Arrow IPC") as at, open_arrow(file) as source:
        for batch in _batches(source):
            _check_names(file.name, batch.schema)
            _check_cells(file.name, batch, row)
            for start in range(0, batch.num_rows, rows_max):
                part = batch.slice(start, rows_max)
                yield Piece(file.name, range(row + 1, row + part.num_rows + 1), part)
                at.row = row = row + part.num_rows


@contextmanager
def open_parquet(file: TableFile) -> Iterator[pq.ParquetFile]:
    """A Parquet file, of which as little is read at once as can be. Raises pyarrow's errors, and OSError."""
    with (
        nullcontext(file.local) if file.local is not None else file.open() as source,
        pq.ParquetFile(source, pre_buffer=False, buffer_size=BUFFER_BYTES) as table,
    ):
        yield table


@contextmanager
def open_arrow(file: TableFile) -> Iterator[pa.NativeFile]:
    """An Arrow IPC file. Raises pyarrow's errors, and OSError."""
    if file.local is not None:
        with pa.memory_map(str(file.local)) as source:
            yield source
    else:
        with file.open() as opened, pa.PythonFile(opened, mode="r") as source:
            yield source


def _batches(source: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    if not is_file:
        yield from pa.ipc.open_stream(source)
        return
    reader = pa.ipc.open_file(source)
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)


def _rows_of_few_bytes(metadata: pq.FileMetaData, rows_max: int) -> int:
    """How many rows to read at once: rows may hold whole images."""
    groups = [metadata.row_group(number) for number in range(min(metadata.num_row_groups, 1000))]
    size: int = sum(group.total_byte_size for group in groups)
    rows: int = sum(group.num_rows for group in groups)
    return max(1, min(rows_max, PIECE_BYTES_MAX * rows // max(size, 1)))


class _At:
    """How many rows of a file have been read."""

    row = 0


@contextmanager
def _reading(name: str, kind: str) -> Iterator[_At]:
    at = _At()
    try:
        yield at
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowSerializationError) as error:
        said = str(error).splitlines()[0]
        where = f" behind row {at.row}" if at.row else ""
        raise table_error(name, f"not {kind} that can be read{where}: {said}") from error
    except OSError as error:  # Arrow's own errors of damaged pages among them
        if error.errno is None:
            raise table_error(name, f"damaged behind row {at.row}: {error}") from error
        raise StorageError(f"{name}: cannot be read: {error.strerror}") from error


def _check_names(name: str, schema: pa.Schema) -> None:
    twice = next((each for each in schema.names if schema.names.count(each) > 1), None)
    if twice is not None:
        raise table_error(name, "two columns of one name", column=twice)


def _check_cells(name: str, batch: pa.RecordBatch, row: int) -> None:
    """Raises InputError for the first cell that is not as its column's type says; `row` stand before it."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        for field, column in zip(batch.schema, batch.columns, strict=True):
            for index in range(len(column)):
                if not _is_valid(column.slice(index, 1)):
                    what = f"not a valid {field.type}: {str(error).splitlines()[0]}"
                    raise table_error(name, what, row + index + 1, field.name) from error
        if not any(map(_has_dictionary, batch.schema.types)):
            raise


def _is_valid(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return _has_dictionary(column.type) and _is_readable(column)
    return True


def _has_dictionary(kind: pa.DataType) -> bool:
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    return pa.types.is_dictionary(kind) or any(map(_has_dictionary, inner))


def _is_readable(column: pa.Array) -> bool:
    """What is null may point into an empty dictionary, as Arrow itself makes it: nobody looks there."""
    try:
        column.validate()
        column.to_pylist()
    except (pa.ArrowInvalid, IndexError, ValueError):
        return False
    return True
