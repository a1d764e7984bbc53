"""The one pass over a table: read, checked row by row, and laid down in blocks."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from dispatcher.annotate.column_tables import read_arrow, read_parquet
from dispatcher.annotate.conditions import Condition, all_met
from dispatcher.annotate.faults import Faults, RowError, place, table_error
from dispatcher.annotate.finding import TableFiles
from dispatcher.annotate.formats import TEXT, Format
from dispatcher.annotate.ids import Ids, row_id
from dispatcher.annotate.pieces import Piece, Row, holds_lines, rows_of
from dispatcher.annotate.shapes import Columns
from dispatcher.annotate.staged import BlockWriter, StagedTable
from dispatcher.annotate.table_files import TableFile
from dispatcher.annotate.text_tables import read_delimited, read_json_lines
from dispatcher.annotate.writing import unwritable
from dispatcher.errors import Fault, InputError
from dispatcher.model import Shard

SHARDS_AT_ONCE = 256
DEPTH_MAX = 60
"""Of types in types: Arrow reads 64 (`IpcReadOptions.max_recursion_depth`)."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows and columns of a table count, and what is checked of them."""

    conditions: Sequence[Condition] = ()
    limit: int | None = None
    columns: Sequence[str] = ()
    """The input's columns in the output; none: all."""
    id_column: str | None = None
    new_columns: Collection[str] = ()
    """Names of the answers' columns: the input must not have them."""
    output: Format = Format.PARQUET
    """What is written. Where it has types, JSON lines must have them as well."""
    shard_size: int = 256


class Asking(Protocol):
    """What is asked about rows: by one question, or by several."""

    @property
    def columns(self) -> frozenset[str] | None:
        """The columns that it may look at; None: any."""

    def check(self, row: Row) -> None:
        """Find out what would be wrong with a row. Raises RowError."""


def pieces(files: TableFiles, rows_max: int) -> Iterator[Piece]:
    """A table's rows, file by file. Raises InputError where one cannot be read, or has other columns."""
    schema: pa.Schema | None = None
    for file in files.files:
        for piece in _pieces_of(file, files.format, rows_max):
            schema = schema or piece.batch.schema
            _check_same(piece, schema)
            yield piece


def stage(
    files: TableFiles,
    recipe: Asking,
    selection: Selection,
    table: StagedTable,
    work_dir: Path,
    add_shards: Callable[[list[Shard]], None],
) -> None:
    """Read a table, check every row that counts, and lay it down in shards. Blocks.

    Memory holds a few pieces at a time, and the hashes of ids where they are checked. Raises InputError with
    the first faults and their number; StorageError.
    """
    with table.writing() as blocks, Ids(work_dir) as ids:
        staging = _Staging(files, recipe, selection, blocks, ids)
        shards: list[Shard] = []
        for shard in staging.shards():
            shards.append(shard)
            if len(shards) >= SHARDS_AT_ONCE:
                add_shards(shards)
                shards = []
        staging.finish()
        staging.check_types()
        if shards:
            add_shards(shards)
    table.keep_schema(staging.schema())


class _Staging:
    """One pass's state."""

    def __init__(
        self, files: TableFiles, recipe: Asking, selection: Selection, blocks: BlockWriter, ids: Ids
    ) -> None:
        self._files = files
        self._recipe = recipe
        self._selection = selection
        self._blocks = blocks
        self._ids = ids
        self._faults = Faults()
        self._columns = Columns(selection.columns, typed=selection.output not in TEXT)
        self._schema: pa.Schema | None = None
        self._taken = 0
        self._needed = _needed(recipe, selection)

    def shards(self) -> Iterator[Shard]:
        size = self._selection.shard_size
        for piece in pieces(self._files, size):
            if self._schema is None:
                self._schema = piece.batch.schema
                self._check_columns(piece)
            chosen = self._chosen(piece)
            if not self._faults.count:
                yield from self._blocks.add(chosen, size)
            if self._taken == self._selection.limit:
                break
        if not self._faults.count:
            yield from self._blocks.close()

    def finish(self) -> None:
        """Raises InputError for what was found."""
        self._ids.report(self._faults)
        self._faults.check(self._files.name)
        if not self._taken:
            met = " that meets --where" if self._selection.conditions else ""
            raise InputError(f"{self._files.name}: the table has no row{met}")
        if self._schema is not None and holds_lines(self._schema) and (missing := self._columns.missing()):
            raise _without(self._files.name, "columns are missing", missing, "no row has such a column")

    def check_types(self) -> None:
        """Raises InputError for a column that cannot be written: else that were found out after the work."""
        schema = self.schema()
        found = too_deep(schema) or unwritable(self._selection.output, schema)
        if found is not None:
            column, why = found
            message = f"a column of this type cannot be written: {why}. Leave it out with --columns"
            raise table_error(self._files.name, message, column=column)

    def schema(self) -> pa.Schema:
        """The input's columns in the output."""
        assert self._schema is not None, "there was a row"
        if holds_lines(self._schema):
            return self._columns.schema().with_metadata({"dispatcher.lines": "1"})
        kept = self._selection.columns or self._schema.names
        return pa.schema([self._schema.field(name) for name in kept], self._schema.metadata)

    def _chosen(self, piece: Piece) -> pa.RecordBatch:
        rows = piece.rows if piece.rows is not None else rows_of(piece.batch, self._needed)
        mask = [self._takes(piece.file, number, row) for number, row in zip(piece.numbers, rows, strict=True)]
        return piece.batch if all(mask) else piece.batch.filter(pa.array(mask, pa.bool_()))

    def _takes(self, file: str, number: int, row: Row) -> bool:
        if self._taken == self._selection.limit:
            return False
        try:
            if not all_met(self._selection.conditions, row):
                return False
            self._taken += 1
            self._check(file, number, row)
        except RowError as error:
            self._faults.add(file, number, error)
        return True

    def _check(self, file: str, number: int, row: Row) -> None:
        self._recipe.check(row)
        if self._selection.id_column is not None:
            self._ids.add(row_id(row, self._selection.id_column), file, number)
        if self._schema is not None and holds_lines(self._schema):
            refuse_collision(row, self._selection.new_columns)
            self._columns.add(row)

    def _check_columns(self, piece: Piece) -> None:
        """What can be told of a table with fixed columns before any of its rows."""
        names = piece.batch.schema.names
        if (found := too_deep(piece.batch.schema)) is not None:
            raise table_error(piece.file, found[1], column=found[0])
        if holds_lines(piece.batch.schema):
            return
        try:
            refuse_collision(dict.fromkeys(names), self._selection.new_columns)
        except RowError as error:
            raise table_error(piece.file, error.message, column=error.column) from error
        missing = [name for name in sorted(self._needed or ()) if name not in names]
        missing += [name for name in self._selection.columns if name not in names]
        if missing:
            told = f"columns are missing; it has {', '.join(names[:50])}"
            raise _without(piece.file, told, missing, "there is no such column")


def _without(file: str, told: str, missing: Sequence[str], why: str) -> InputError:
    faults = tuple(Fault(place(file, None, name), why) for name in missing)
    return InputError(f"{file}: {told}", faults, len(missing))


def too_deep(schema: pa.Schema) -> tuple[str, str] | None:
    """A column that is nested deeper than Arrow reads again, and that it is so."""
    deep = next((field.name for field in schema if _depth(field.type) > DEPTH_MAX), None)
    return None if deep is None else (deep, f"nested more than {DEPTH_MAX} deep")


def _depth(kind: pa.DataType) -> int:
    return 1 + max((_depth(kind.field(index).type) for index in range(kind.num_fields)), default=0)


def _needed(recipe: Asking, selection: Selection) -> frozenset[str] | None:
    if recipe.columns is None:
        return None
    more = {condition.column for condition in selection.conditions}
    if selection.id_column is not None:
        more.add(selection.id_column)
    return recipe.columns | more


def refuse_collision(row: Row, names: Collection[str]) -> None:
    """Raises RowError where the row has one of the answers' columns already."""
    taken = next((name for name in names if name in row), None)
    if taken is not None:
        raise RowError("the answers' columns would replace it; choose another --prefix", taken)


def _pieces_of(file: TableFile, kind: Format, rows_max: int) -> Iterator[Piece]:
    match kind:
        case Format.JSONL:
            return read_json_lines(file, rows_max)
        case Format.CSV:
            return read_delimited(file, ",", rows_max)
        case Format.TSV:
            return read_delimited(file, "\t", rows_max)
        case Format.PARQUET:
            return read_parquet(file, rows_max)
        case Format.ARROW:
            return read_arrow(file, rows_max)


def _check_same(piece: Piece, schema: pa.Schema) -> None:
    if piece.batch.schema.equals(schema):
        return
    here, there = piece.batch.schema, schema
    for name in dict.fromkeys([*there.names, *here.names]):
        if (
            name not in here.names
            or name not in there.names
            or here.field(name).type != there.field(name).type
        ):
            raise table_error(
                piece.file, "other columns, or another type, than the files before", column=name
            )
    raise table_error(piece.file, "its columns are in another order than those of the files before")
