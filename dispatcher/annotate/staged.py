"""A table as it lies in the state directory: one block for each shard, to be read again in any order.

A block is a whole Arrow IPC stream of a single batch: it holds its schema and its dictionaries, so that any
block can be read without any other. `rows.arrows` has the blocks one after the other, `schema.arrows` the
columns of the output, `shards.jsonl` where the blocks are, for steps that come later.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa

from dispatcher.annotate.pieces import PIECE_BYTES_MAX, Row, holds_lines, rows_of
from dispatcher.errors import StorageError
from dispatcher.model import Shard
from dispatcher.storage.filesystem import atomic_write, fsync_dir, storage_errors

_PACKED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


class StagedTable:
    """The rows of a table that was staged in `directory`. Every method blocks."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._rows = directory / "rows.arrows"
        self._schema = directory / "schema.arrows"
        self._shards = directory / "shards.jsonl"

    @contextmanager
    def writing(self) -> Iterator["BlockWriter"]:
        """Write the table anew; whole and durable when the context is left without an exception."""
        with storage_errors(self._directory, "cannot be written"):
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory.mkdir()
            with self._rows.open("wb") as file:
                yield BlockWriter(file)
                file.flush()
                os.fsync(file.fileno())
            fsync_dir(self._directory)

    def keep_schema(self, schema: pa.Schema) -> None:
        """Keep the columns of the output, less those of the answers."""
        sink = pa.BufferOutputStream()
        pa.ipc.new_stream(sink, schema).close()
        atomic_write(self._schema, sink.getvalue().to_pybytes())

    def schema(self) -> pa.Schema:
        """The columns of the output, less those of the answers. Raises StorageError."""
        with _translated(self._schema):
            return pa.ipc.open_stream(pa.py_buffer(self._schema.read_bytes())).schema

    def keep_shards(self, shards: Sequence[Shard]) -> None:
        """Note where shards are, for whoever reads the table again from its start."""
        with storage_errors(self._shards, "cannot be written"), self._shards.open("ab") as file:
            file.writelines(msgspec.json.encode(_place(shard)) + b"\n" for shard in shards)
            file.flush()
            os.fsync(file.fileno())

    def shards(self) -> Iterator[Shard]:
        """The shards that were noted, in order. Raises StorageError."""
        with storage_errors(self._shards, "cannot be read"), self._shards.open("rb") as file:
            for line in file:
                yield Shard(*_PLACE.decode(line))

    def read(self, shard: Shard) -> pa.RecordBatch:
        """A shard's rows. Raises StorageError where they are not as they were written."""
        with _translated(self._rows):
            with self._rows.open("rb") as file:
                block = os.pread(file.fileno(), shard.length, shard.offset)
            batch = pa.ipc.open_stream(pa.py_buffer(block)).read_next_batch()
            if batch.num_rows != shard.count:
                raise pa.ArrowInvalid(f"{batch.num_rows} rows where {shard.count} were")
            return batch


class BlockWriter:
    """Collects batches into blocks, and writes them."""

    def __init__(self, file: BinaryIO) -> None:
        self.rows = 0
        self._file = file
        self._shards = 0
        self._pending: list[pa.RecordBatch] = []
        self._count = self._bytes = 0

    def add(self, batch: pa.RecordBatch, rows_max: int) -> Iterator[Shard]:
        """Take rows, and give the shards that they fill."""
        while batch.num_rows:
            part = batch.slice(0, rows_max - self._count)
            batch = batch.slice(part.num_rows)
            if self._pending and self._bytes + part.nbytes > PIECE_BYTES_MAX:
                yield self._write()
            self._pending.append(part)
            self._count += part.num_rows
            self._bytes += part.nbytes
            if self._count >= rows_max:
                yield self._write()

    def close(self) -> Iterator[Shard]:
        """The shard of the last rows, if there are any."""
        if self._pending:
            yield self._write()

    def _write(self) -> Shard:
        batch = pa.Table.from_batches(self._pending).combine_chunks().to_batches()[0]
        offset = self._file.tell()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=_PACKED) as stream:
            stream.write_batch(batch)
        self._file.write(sink.getvalue())
        shard = Shard(self._shards, self.rows, batch.num_rows, offset, self._file.tell() - offset)
        self._shards += 1
        self.rows += batch.num_rows
        self._pending = []
        self._count = self._bytes = 0
        return shard


def staged_rows(batch: pa.RecordBatch, columns: frozenset[str] | None) -> Sequence[Row]:
    """A staged batch's rows: of lines decoded, else of these columns; None: all."""
    if holds_lines(batch.schema):
        return [msgspec.json.decode(line) for line in batch.column(0).to_pylist()]
    return rows_of(batch, columns)


def _place(shard: Shard) -> tuple[int, int, int, int, int]:
    return shard.number, shard.first_index, shard.count, shard.offset, shard.length


_PLACE = msgspec.json.Decoder(tuple[int, int, int, int, int])


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        with storage_errors(path, "cannot be read"):
            yield
    except (pa.ArrowException, StopIteration) as error:
        raise StorageError(
            f"{path}: not as it was written: {error}; give --restart to read the table again"
        ) from error
