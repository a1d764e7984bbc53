"""The output table, written as it comes, in bounded memory."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from dispatcher.annotate.cells import cell_text
from dispatcher.annotate.finished import MARK
from dispatcher.annotate.formats import Format
from dispatcher.annotate.pieces import Row, holds_lines, rows_of

GROUP_ROWS = 65_536
GROUP_BYTES_MAX = 32 << 20
"""A row group, or a batch, of the output holds as many rows as these allow."""


@dataclass(frozen=True, slots=True)
class Part:
    """A shard's rows with their answers."""

    batch: pa.RecordBatch
    """The input's rows, as they were staged."""
    answers: Sequence[Row]


class TableWriter(Protocol):
    """A table being written. Blocks; raises OSError."""

    def write(self, part: Part) -> None:
        """Add rows."""

    def close(self) -> None:
        """Write what is left, and the end of the file. The file itself stays open."""


def open_writer(
    kind: Format, file: BinaryIO, columns: pa.Schema, fields: Sequence[pa.Field], mark: str
) -> TableWriter:
    """A writer of this format. `columns` are those of the input, `fields` those of the answers."""
    match kind:
        case Format.JSONL:
            return JsonLines(file, columns)
        case Format.CSV:
            return Delimited(file, columns, fields, ",")
        case Format.TSV:
            return Delimited(file, columns, fields, "\t")
        case Format.PARQUET:
            return Columnar(ParquetSink(file, _joined(columns, fields, mark)), columns, fields)
        case Format.ARROW:
            return Columnar(ArrowSink(file, _joined(columns, fields, mark)), columns, fields)


def unwritable(kind: Format, columns: pa.Schema) -> tuple[str, str] | None:
    """A column whose type the format cannot hold, and why: Parquet has no structs without members, say."""
    for field in columns:
        try:
            open_writer(kind, io.BytesIO(), pa.schema([field]), [], "").close()
        except pa.ArrowException as error:
            return field.name, str(error).splitlines()[0]
    return None


class JsonLines:
    """JSON lines from JSON lines keep every input line's bytes; the answers follow them."""

    def __init__(self, file: BinaryIO, columns: pa.Schema) -> None:
        self._file = file
        self._columns = columns.names
        self._names = frozenset(columns.names)

    def write(self, part: Part) -> None:
        """See TableWriter."""
        if holds_lines(part.batch.schema):
            lines = part.batch.column(0).to_pylist()
            inputs = [self._selected(line) for line in lines]
        else:
            inputs = [_json(row) for row in rows_of(part.batch, self._names)]
        for line, answer in zip(inputs, part.answers, strict=True):
            self._file.write(_with_members(line, _json(answer)) + b"\n")

    def close(self) -> None:
        """See TableWriter."""

    def _selected(self, line: bytes) -> bytes:
        members = _MEMBERS.decode(line)
        if members.keys() <= self._names:
            return line
        return _json({name: members[name] for name in self._columns if name in members})


class Delimited:
    """CSV or TSV. A null is an empty cell; lists and objects are JSON."""

    def __init__(
        self, file: BinaryIO, columns: pa.Schema, fields: Sequence[pa.Field], delimiter: str
    ) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
        self._columns = columns.names
        self._names = [field.name for field in fields]
        self._rows = csv.writer(self._text, delimiter=delimiter, lineterminator="\n")
        self._rows.writerow([*self._columns, *self._names])

    def write(self, part: Part) -> None:
        """See TableWriter."""
        for row, answer in zip(_input_rows(part.batch, self._columns), part.answers, strict=True):
            cells = [row.get(name) for name in self._columns] + [answer[name] for name in self._names]
            self._rows.writerow([cell_text(cell) for cell in cells])

    def close(self) -> None:
        """See TableWriter."""
        self._text.flush()
        self._text.detach()


class ColumnSink(Protocol):
    """A file of columns."""

    schema: pa.Schema

    def write(self, table: pa.Table) -> None:
        """Add a group of rows."""

    def close(self) -> None:
        """Write the file's end."""


class ParquetSink:
    """A Parquet file, zstd-compressed: one row group for each table."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self.schema = schema
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        """See ColumnSink."""
        self._writer.write_table(table)

    def close(self) -> None:
        """See ColumnSink."""
        self._writer.close()


class ArrowSink:
    """An Arrow IPC file (Feather 2), lz4-compressed. Its dictionaries become plain columns.

    The format allows one dictionary a column and file, and shards each have their own.
    """

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        fields = [field.with_type(_plain(field.type)) for field in schema]
        self.schema = pa.schema(fields, schema.metadata)
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        self._writer = pa.ipc.new_file(file, self.schema, options=options)

    def write(self, table: pa.Table) -> None:
        """See ColumnSink."""
        columns = [
            _cast(column, field.type) for column, field in zip(table.columns, self.schema, strict=True)
        ]
        for batch in pa.Table.from_arrays(columns, schema=self.schema).combine_chunks().to_batches():
            self._writer.write_batch(batch)

    def close(self) -> None:
        """See ColumnSink."""
        self._writer.close()


class Columnar:
    """Collects shards into groups of rows for a sink."""

    def __init__(self, sink: ColumnSink, columns: pa.Schema, fields: Sequence[pa.Field]) -> None:
        self._sink = sink
        self._columns = columns
        self._answers = pa.schema(list(fields))
        self._all = pa.schema([*columns, *fields])
        self._pending: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, part: Part) -> None:
        """See TableWriter."""
        answers = pa.RecordBatch.from_pylist(list(part.answers), schema=self._answers)
        arrays = [*self._inputs(part.batch).columns, *answers.columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._all)
        self._pending.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES_MAX:
            self._flush()

    def close(self) -> None:
        """See TableWriter."""
        if self._pending:
            self._flush()
        self._sink.close()

    def _inputs(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if holds_lines(batch.schema):
            rows = [msgspec.json.decode(line) for line in batch.column(0).to_pylist()]
            return pa.RecordBatch.from_pylist(rows, schema=self._columns)
        return batch.select(self._columns.names)

    def _flush(self) -> None:
        group, self._pending = pa.Table.from_batches(self._pending), []
        self._sink.write(group)
        self._rows = self._bytes = 0


def _joined(columns: pa.Schema, fields: Sequence[pa.Field], mark: str) -> pa.Schema:
    metadata = {key: value for key, value in (columns.metadata or {}).items() if key != b"dispatcher.lines"}
    return pa.schema([*columns, *fields], {**metadata, MARK: mark.encode()})


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowIndexError:  # what is null points into an empty dictionary, as Arrow itself makes it
        return pa.chunked_array([pa.array(column.to_pylist(), kind)])


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without dictionaries, wherever they are in it."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_plain(kind.value_type)))
    return kind


def _input_rows(batch: pa.RecordBatch, columns: Sequence[str]) -> Sequence[Row]:
    if holds_lines(batch.schema):
        return [msgspec.json.decode(line) for line in batch.column(0).to_pylist()]
    return rows_of(batch, frozenset(columns))


def _with_members(line: bytes, members: bytes) -> bytes:
    """A JSON object with the members of another one behind its own."""
    start = line.rstrip()[:-1].rstrip()
    return start + (members[1:] if start.endswith(b"{") and len(start) == 1 else b"," + members[1:])


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
