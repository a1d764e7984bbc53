"""Columns of any type go through a run's files and come back as they were."""

import datetime as dt
import decimal
import tempfile
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.annotate.finding import find_files
from dispatcher.annotate.formats import Format
from dispatcher.annotate.staged import StagedTable
from dispatcher.annotate.staging import Selection, pieces, stage
from dispatcher.annotate.writing import Part, open_writer

ANSWER = [pa.field("answer", pa.string())]


class Nothing:
    """A question that looks at no column."""

    columns = frozenset()

    def check(self, row):
        pass


def moments(zone=None):
    return st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(zone))  # noqa: DTZ001


def decimals(digits, places):
    most = decimal.Decimal(10 ** (digits - places)) - 1
    return st.decimals(-most, most, places=places, allow_nan=False)


def whole(bits, *, signed=True):
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
SPANS = st.timedeltas(dt.timedelta(days=-9999), dt.timedelta(days=9999))
LEAVES = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    *((getattr(pa, f"int{bits}")(), whole(bits)) for bits in (8, 16, 32, 64)),
    *((getattr(pa, f"uint{bits}")(), whole(bits, signed=False)) for bits in (8, 16, 32, 64)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.binary(), st.binary(max_size=9)),
    (pa.large_binary(), st.binary(max_size=9)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    (pa.time32("s"), st.times().map(lambda time: time.replace(microsecond=0))),
    (pa.time64("us"), st.times()),
    (pa.time64("ns"), st.integers(0, 86_399_999_999_999)),
    *((pa.timestamp(unit), moments()) for unit in ("s", "ms", "us")),
    (pa.timestamp("ns"), st.integers(-(2**62), 2**62)),
    (pa.timestamp("us", "UTC"), moments(dt.UTC)),
    (pa.timestamp("ms", "Europe/Berlin"), moments(dt.UTC)),
    (pa.timestamp("ns", "Asia/Kolkata"), st.integers(-(2**62), 2**62)),
    (pa.timestamp("us"), st.integers(2**60, 2**62)),  # far beyond what Python's own dates can say
    (pa.date32(), st.integers(10**7, 2**31 - 1)),
    (pa.duration("us"), SPANS),
    (pa.duration("ns"), st.integers(-(2**62), 2**62)),
    (pa.decimal128(9, 2), decimals(9, 2)),
    (pa.decimal256(50, 5), decimals(40, 5)),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", "c"])),
]


def nested(inner):
    """Lists, structs and maps of what there is."""
    return st.one_of(
        inner.map(lambda kind: (pa.list_(kind[0]), st.lists(kind[1], max_size=3))),
        inner.map(lambda kind: (pa.large_list(kind[0]), st.lists(kind[1], max_size=3))),
        inner.map(lambda kind: (pa.list_(kind[0], 2), st.lists(kind[1], min_size=2, max_size=2))),
        st.lists(inner, min_size=1, max_size=3).map(_struct),
        inner.map(lambda kind: (pa.map_(pa.string(), kind[0]), _pairs(kind[1]))),
    )


def _struct(kinds):
    fields = [pa.field(f"m{number}", kind) for number, (kind, _) in enumerate(kinds)]
    values = st.fixed_dictionaries({f"m{number}": value for number, (_, value) in enumerate(kinds)})
    return pa.struct(fields), values


def _pairs(values):
    return st.dictionaries(st.sampled_from("klm"), values, max_size=3).map(lambda pairs: list(pairs.items()))


def nullable(kind):
    return kind[0], st.none() | kind[1]


KINDS = st.recursive(st.sampled_from(LEAVES).map(nullable), nested, max_leaves=4)


@st.composite
def tables(draw):
    count = draw(st.integers(1, 12))
    columns = {}
    for number, kind in enumerate(draw(st.lists(KINDS.map(nullable), min_size=1, max_size=4))):
        values = draw(st.lists(kind[1], min_size=count, max_size=count))
        columns[f"c{number}"] = pa.array(values, kind[0])
    return pa.table(columns)


def through(table, kind, directory):
    """The table with answers, by way of a staged copy, as a file of this format."""
    source = directory / "in.arrow"
    with pa.ipc.new_stream(source, table.schema) as stream:
        stream.write_table(table, max_chunksize=5)
    staged, shards = StagedTable(directory / "table"), []
    selection = Selection(shard_size=3, output=kind, new_columns=("answer",))
    stage(find_files(str(source)), Nothing(), selection, staged, directory, shards.extend)
    path = directory / f"out.{kind.name.lower()}"
    with path.open("wb") as file:
        writer = open_writer(kind, file, staged.schema(), ANSWER, "mark")
        for shard in shards:
            batch = staged.read(shard)
            writer.write(Part(batch, [{"answer": "a"}] * batch.num_rows))
        writer.close()
    return path


def as_parquet(table, directory):
    """What Parquet itself makes of a table."""
    pq.write_table(table, directory / "plain.parquet")
    return pq.read_table(directory / "plain.parquet")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables())
def test_every_column_comes_back_as_it_was(table):
    names = table.column_names
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        arrow = pa.ipc.open_file(through(table, Format.ARROW, directory)).read_all()
        assert all(arrow[name].equals(_without_dictionaries(table, arrow, name)) for name in names)
        parquet = pq.read_table(through(table, Format.PARQUET, directory))
        assert parquet.select(names).equals(as_parquet(table, directory))
        lines = through(table, Format.JSONL, directory).read_bytes().splitlines()
        assert [list(msgspec.json.decode(line)) for line in lines] == [[*names, "answer"]] * len(table)
        read = sum(piece.batch.num_rows for piece in pieces(find_files(str(directory / "out.parquet")), 4))
        assert read == len(table)


def _without_dictionaries(table, arrow, name):
    """A column as it was given, or without its dictionaries: Arrow's files do not get any."""
    given, found = table[name], arrow[name]
    try:
        return given if given.type == found.type else given.cast(found.type)
    except pa.ArrowIndexError:  # Arrow's own null may point into an empty dictionary
        return pa.chunked_array([pa.array(given.to_pylist(), found.type)])
