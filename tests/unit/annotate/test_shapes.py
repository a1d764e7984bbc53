"""The columns of JSON lines."""

import pyarrow as pa
import pytest

from dispatcher.annotate.faults import RowError
from dispatcher.annotate.shapes import Columns


def schema_of(*rows, kept=(), typed=True):
    columns = Columns(kept, typed=typed)
    for row in rows:
        columns.add(row)
    return columns.schema()


def test_types_are_found_in_all_rows():
    schema = schema_of(
        {"a": None, "b": 1, "c": [], "d": {"x": None}},
        {"a": "t", "b": 1.5, "c": [None], "d": {"y": True}},
        {"c": [1], "e": [{"z": [1]}]},
    )
    assert schema == pa.schema(
        {
            "a": pa.string(),
            "b": pa.float64(),
            "c": pa.list_(pa.int64()),
            "d": pa.struct({"x": pa.null(), "y": pa.bool_()}),
            "e": pa.list_(pa.struct({"z": pa.list_(pa.int64())})),
        }
    )


def test_only_the_kept_columns_are_of_interest():
    assert schema_of({"a": 1, "b": 2}, {"a": "x", "b": 2}, kept=("b",)).names == ["b"]


@pytest.mark.parametrize(
    "values", [(1, "a"), ("a", True), (True, 1), ([1], ["a"]), ({"x": 1}, {"x": []}), (2**64,), ([2**63],)]
)
def test_mixed_types_and_large_numbers_are_told_with_their_column(values):
    with pytest.raises(RowError) as told:
        schema_of(*({"a": value} for value in values))
    assert told.value.column == "a"
    schema_of(*({"a": value} for value in values), typed=False)
