"""Reading JSON lines, CSV and TSV: as a stream, strictly UTF-8, and without guessing at types."""

import csv
import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from dispatcher.annotate.faults import table_error
from dispatcher.annotate.pieces import LINES_SCHEMA, PIECE_BYTES_MAX, Piece, Row
from dispatcher.annotate.table_files import TableFile
from dispatcher.compression import Compression, unpacked
from dispatcher.jsonl import Line, split_lines

CELL_BYTES_MAX = 256 << 20


def read_json_lines(file: TableFile, rows_max: int) -> Iterator[Piece]:
    """The objects of a file of JSON lines, in pieces. Raises InputError for a line that is none."""
    numbers: list[int] = []
    lines: list[bytes] = []
    rows: list[Row] = []
    size = 0
    path = file.name
    with file.open() as opened:
        chunks = unpacked(opened, Compression.of(path), path)
        for line in split_lines(chunks):
            if line.blank:
                continue
            rows.append(_decoded(path, line.number, line.content))
            numbers.append(line.number)
            lines.append(_one_line(line.content))
            size += line.length
            if len(lines) >= rows_max or size >= PIECE_BYTES_MAX:
                yield Piece(path, numbers, _lines_batch(lines), rows)
                numbers, lines, rows, size = [], [], [], 0
    if lines:
        yield Piece(path, numbers, _lines_batch(lines), rows)


def read_delimited(file: TableFile, delimiter: str, rows_max: int) -> Iterator[Piece]:
    """The records of a CSV or TSV file with a header, in pieces: every cell is text, as it stands there.

    Raises InputError for a record that is none.
    """
    csv.field_size_limit(CELL_BYTES_MAX)
    path = file.name
    with file.open() as opened:
        chunks = unpacked(opened, Compression.of(path), path)
        # Line ends stay as they are: those in quotes belong to their cell.
        texts = (_text(path, line) for line in split_lines(chunks))
        records = _Records(path, csv.reader(texts, delimiter=delimiter, strict=True))
        schema = pa.schema([pa.field(name, pa.string()) for name in records.header()])
        yield from records.pieces(schema, rows_max)


class _Records:
    """Records as csv yields them, checked."""

    def __init__(self, path: str, records: Iterator[list[str]]) -> None:
        self._path = path
        self._records = records
        self._row = 0
        self._header: list[str] = []

    def header(self) -> list[str]:
        record = self._next()
        if record is None:
            raise table_error(self._path, "empty; its first line must name the columns")
        if "" in record:
            raise table_error(self._path, f"column {record.index('') + 1} of the header has no name")
        odd = next((index for index, name in enumerate(record, 1) if _is_not_utf8(name)), None)
        if odd is not None:
            raise table_error(self._path, f"column {odd} of the header is not UTF-8")
        if len(set(record)) != len(record):
            twice = next(name for name in record if record.count(name) > 1)
            raise table_error(self._path, "the header names it twice", column=twice)
        self._header = record
        return record

    def pieces(self, schema: pa.Schema, rows_max: int) -> Iterator[Piece]:
        records: list[list[str]] = []
        size = 0
        while (record := self._next()) is not None:
            if not record:
                continue  # a blank line
            self._row += 1
            self._check(record)
            records.append(record)
            size += sum(map(len, record))
            if len(records) >= rows_max or size >= PIECE_BYTES_MAX:
                yield self._piece(records, schema)
                records, size = [], 0
        if records:
            yield self._piece(records, schema)

    def _piece(self, records: list[list[str]], schema: pa.Schema) -> Piece:
        numbers = range(self._row - len(records) + 1, self._row + 1)
        columns = [pa.array(cells, pa.string()) for cells in zip(*records, strict=True)]
        return Piece(self._path, numbers, pa.RecordBatch.from_arrays(columns, schema=schema))

    def _next(self) -> list[str] | None:
        try:
            return next(self._records, None)
        except csv.Error as error:
            raise table_error(self._path, f"not CSV: {error}", self._row + 1) from error

    def _check(self, record: Sequence[str]) -> None:
        if len(record) != len(self._header):
            message = f"{len(record)} cells where the header has {len(self._header)}"
            raise table_error(self._path, message, self._row)
        for name, cell in zip(self._header, record, strict=True):
            if not cell.isascii() and _is_not_utf8(cell):
                raise table_error(self._path, "not UTF-8", self._row, name)


def _text(path: str, line: Line) -> str:
    """A line with its end. What is no UTF-8 is kept apart, to be told by its column."""
    if line.content is None:
        raise table_error(path, f"line {line.number} is longer than 256 MiB")
    return line.content.decode(errors="surrogateescape") + "\n"


def _is_not_utf8(cell: str) -> bool:
    try:
        cell.encode()
    except UnicodeEncodeError:
        return True
    return False


def _decoded(path: str, number: int, content: bytes | None) -> Row:
    if content is None:
        raise table_error(path, "longer than 256 MiB", number)
    try:
        row: Any = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        column = _column_without_utf8(content)
        message = "not UTF-8" if column else f"not JSON: {error}"
        raise table_error(path, message, number, column) from error
    if not isinstance(row, dict):
        raise table_error(path, "not a JSON object", number)
    return row


def _column_without_utf8(content: bytes) -> str | None:
    try:
        row = json.loads(content.decode(errors="surrogateescape"))
        return next(
            (name for name, value in row.items() if _is_not_utf8(json.dumps(value, ensure_ascii=False))), None
        )
    except (ValueError, AttributeError, RecursionError):
        return None


def _one_line(content: bytes | None) -> bytes:
    assert content is not None, "it was decoded"
    return content.strip(b" \t\r")


def _lines_batch(lines: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(lines, pa.large_binary())], schema=LINES_SCHEMA)
