"""Rows laid down in blocks, and read again in any order."""

import pyarrow as pa
import pytest

from dispatcher.annotate.pieces import PIECE_BYTES_MAX
from dispatcher.annotate.staged import StagedTable
from dispatcher.errors import StorageError


def batch(first, count, size=1):
    texts = pa.array([f"{number}" * size for number in range(first, first + count)])
    return pa.RecordBatch.from_pydict({"n": range(first, first + count), "t": texts.dictionary_encode()})


def staged(table, *batches, rows_max):
    shards = []
    with table.writing() as blocks:
        for each in batches:
            shards.extend(blocks.add(each, rows_max))
        shards.extend(blocks.close())
    return shards


@pytest.fixture
def table(tmp_path):
    return StagedTable(tmp_path / "table")


def test_blocks_have_the_rows_that_a_shard_may_have_however_they_come(table):
    shards = staged(table, batch(0, 5), batch(5, 1), batch(6, 14), rows_max=7)
    assert [(shard.number, shard.first_index, shard.count) for shard in shards] == [
        (0, 0, 7),
        (1, 7, 7),
        (2, 14, 6),
    ]
    for shard in reversed(shards):
        rows = table.read(shard).to_pylist()
        assert [row["n"] for row in rows] == [*range(shard.first_index, shard.first_index + shard.count)]
        assert all(row["t"] == str(row["n"]) for row in rows)


def test_a_block_ends_before_it_is_too_large(table):
    shards = staged(table, *(batch(number, 1, PIECE_BYTES_MAX // 2 + 1) for number in range(3)), rows_max=9)
    assert [shard.count for shard in shards] == [1, 1, 1]


def test_a_block_that_is_damaged_or_gone_is_told(table):
    (shard,) = staged(table, batch(0, 5), rows_max=7)
    path = table._rows
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(StorageError, match="--restart"):
        table.read(shard)
    path.unlink()
    with pytest.raises(StorageError):
        table.read(shard)


def test_the_outputs_columns_are_kept(table):
    staged(table, batch(0, 1), rows_max=7)
    schema = pa.schema([pa.field("a", pa.int8())], {"k": "v"})
    table.keep_schema(schema)
    assert table.schema().equals(schema, check_metadata=True)


def test_shards_that_were_noted_come_again_in_order(table):
    shards = staged(table, batch(0, 20), rows_max=7)
    table.keep_shards(shards[:2])
    table.keep_shards(shards[2:])
    assert list(table.shards()) == shards
    staged(table, batch(0, 3), rows_max=7)
    with pytest.raises(StorageError, match="shards"):
        list(table.shards())
