"""Reading Parquet and Arrow IPC: a few rows at a time, whatever a row group or a batch holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dispatcher.annotate.faults import table_error
from dispatcher.annotate.pieces import PIECE_BYTES_MAX, Piece
from dispatcher.errors import StorageError

BUFFER_BYTES = 1 << 20


def read_parquet(path: Path, rows_max: int) -> Iterator[Piece]:
    """The rows of a Parquet file, in pieces. Raises InputError where it is damaged."""
    row = 0
    with (
        _reading(path, "Parquet") as at,
        pq.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER_BYTES) as file,
    ):
        _check_names(path, file.schema_arrow)
        size = _rows_of_few_bytes(file.metadata, rows_max)
        for batch in file.iter_batches(batch_size=size, use_threads=False):
            yield Piece(str(path), range(row + 1, row + batch.num_rows + 1), batch)
            at.row = row = row + batch.num_rows


def read_arrow(path: Path, rows_max: int) -> Iterator[Piece]:
    """The rows of an Arrow IPC file or stream (Feather 2, Hugging Face), in pieces. Raises InputError."""
    row = 0
    with _reading(path, "Arrow IPC") as at, pa.memory_map(str(path)) as source:
        for batch in _batches(source):
            _check_names(path, batch.schema)
            batch.validate(full=True)
            for start in range(0, batch.num_rows, rows_max):
                part = batch.slice(start, rows_max)
                yield Piece(str(path), range(row + 1, row + part.num_rows + 1), part)
                at.row = row = row + part.num_rows


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
def _reading(path: Path, kind: str) -> Iterator[_At]:
    at = _At()
    try:
        yield at
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowSerializationError) as error:
        said = str(error).splitlines()[0]
        where = f" behind row {at.row}" if at.row else ""
        raise table_error(str(path), f"not {kind} that can be read{where}: {said}") from error
    except OSError as error:  # Arrow's own errors of damaged pages among them
        if error.errno is None:
            raise table_error(str(path), f"damaged behind row {at.row}: {error}") from error
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error


def _check_names(path: Path, schema: pa.Schema) -> None:
    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        raise table_error(str(path), "two columns of one name", column=twice)
