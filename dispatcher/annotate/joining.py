"""A finished job's journals joined with its staged rows into the output table, in input order."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dispatcher.annotate.formats import Format
from dispatcher.annotate.layout import Layout
from dispatcher.annotate.staged import StagedTable
from dispatcher.annotate.writing import Part, open_writer
from dispatcher.errors import StorageError
from dispatcher.model import ErrorCode, Job, Shard
from dispatcher.results.finalise import finished_journal
from dispatcher.storage.filesystem import replacing


@dataclass(frozen=True, slots=True)
class Output:
    """Where and how the table is written."""

    path: Path
    format: Format
    layout: Layout
    drop_invalid: bool = False
    """Whether rows without a valid answer are left out."""


def write_table(job: Job, shards: Iterable[Shard], journals: Path, table: StagedTable, output: Output) -> int:
    """Write the table from the journals and the staged rows. Blocks; memory holds a group of rows at a time.

    The file is written aside, synced, and then put in place. Returns its number of rows. Raises StateError
    where an outcome is missing and StorageError where the disk refuses; what stood in its place stands there
    still then.
    """
    rows = 0
    with replacing(output.path.resolve()) as file:
        columns = table.schema()
        writer = open_writer(output.format, file, columns, output.layout.fields, job.mark or job.id)
        try:
            for shard in shards:
                part = _part(job, shard, journals, table, output)
                rows += part.batch.num_rows
                writer.write(part)
            writer.close()
        except pa.ArrowException as error:
            raise StorageError(f"{output.path}: cannot be written: {error}") from error
    return rows


def _part(job: Job, shard: Shard, journals: Path, table: StagedTable, output: Output) -> Part:
    batch = table.read(shard)
    outcomes = finished_journal(job, shard, journals).outcomes
    records = [outcomes[index] for index in range(shard.first_index, shard.first_index + shard.count)]
    if output.drop_invalid:
        mask = [record.mark != ErrorCode.INVALID_ANSWER for record in records]
        batch = batch.filter(pa.array(mask, pa.bool_()))
        records = [record for record, kept in zip(records, mask, strict=True) if kept]
    return Part(batch, [output.layout.values(record) for record in records])
