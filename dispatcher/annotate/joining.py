"""Finished journals joined with the staged rows that they answer, in input order: the output table."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dispatcher.annotate.finished import keep_mark
from dispatcher.annotate.formats import Format
from dispatcher.annotate.layout import Layout
from dispatcher.annotate.places import Place
from dispatcher.annotate.staged import StagedTable
from dispatcher.annotate.writing import Part, open_writer
from dispatcher.errors import StorageError
from dispatcher.model import ErrorCode, Job, Shard
from dispatcher.results.finalise import finished_journal
from dispatcher.results.journal import Record


@dataclass(frozen=True, slots=True)
class Output:
    """Where and how the table is written."""

    place: Place
    format: Format
    layouts: Sequence[Layout]
    """The answers' columns: of each step, in order."""
    drop_invalid: bool = False
    """Whether rows without a valid answer are left out."""

    @property
    def fields(self) -> Sequence[pa.Field]:
        """All columns that are new."""
        return [field for layout in self.layouts for field in layout.fields]

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(field.name for field in self.fields)


@dataclass(frozen=True, slots=True)
class Answered:
    """One finished question about the staged rows."""

    job: Job
    journals: Path
    layout: Layout
    name: str = ""
    """What the step is called."""

    def records(self, shard: Shard) -> list[Record]:
        """A shard's outcomes, in order. Raises StateError where one is missing, and StorageError."""
        outcomes = finished_journal(self.job, shard, self.journals).outcomes
        return [outcomes[index] for index in range(shard.first_index, shard.first_index + shard.count)]


def write_table(
    shards: Iterable[Shard], table: StagedTable, answered: Sequence[Answered], output: Output, mark: str
) -> int:
    """Write the table from the journals and the staged rows. Blocks; memory holds a group of rows at a time.

    The file is written aside, synced, and then put in place. It keeps the `mark` if its format has a place
    for one; else that stands beside it. Returns its number of rows. Raises StateError where an outcome is
    missing and StorageError where a disk or a store refuses; what stood in its place stands there still then.
    """
    rows = 0
    with output.place.writing() as file:
        columns = table.schema()
        writer = open_writer(output.format, file, columns, output.fields, mark)
        try:
            for shard in shards:
                part = _part(shard, table, answered, output)
                rows += part.batch.num_rows
                writer.write(part)
            writer.close()
        except pa.ArrowException as error:
            raise StorageError(f"{output.place.name}: cannot be written: {error}") from error
    keep_mark(output.place, output.format, mark)
    return rows


def _part(shard: Shard, table: StagedTable, answered: Sequence[Answered], output: Output) -> Part:
    batch = table.read(shard)
    rows = list(zip(*(each.records(shard) for each in answered), strict=True))
    if output.drop_invalid:
        mask = [all(record.mark != ErrorCode.INVALID_ANSWER for record in records) for records in rows]
        batch = batch.filter(pa.array(mask, pa.bool_()))
        rows = [records for records, kept in zip(rows, mask, strict=True) if kept]
    layouts = [each.layout for each in answered]
    return Part(batch, [dict(_values(layouts, records)) for records in rows])


def _values(layouts: Sequence[Layout], records: Sequence[Record]) -> Iterator[tuple[str, Any]]:
    for layout, record in zip(layouts, records, strict=True):
        yield from layout.values(record).items()
