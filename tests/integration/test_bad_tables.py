"""Tables that cannot be annotated: each is refused before anything is sent, with file, row and column."""

import gzip
import json

import msgspec
import pyarrow as pa
import pytest
from jobs import sends
from tables import Annotation, texts

from dispatcher.annotate.pieces import rows_of
from dispatcher.app.table import Table
from dispatcher.config import load_config
from dispatcher.errors import ConfigError, InputError

NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\x01\0\0\0\x02\0\0\0"), pa.py_buffer(b"a\xff")]
)
FAR = [
    pa.array([10**18], pa.timestamp("us")),
    pa.array([10**7], pa.date32()),
    pa.array([1], pa.timestamp("s", "Mars/Base")),
    pa.array([[{"at": 1}]], pa.list_(pa.struct([("at", pa.timestamp("ns"))]))),
]
PARQUET = pa.table({"text": ["a", "b"], "day": pa.array([1, 2], pa.date32())})


@pytest.fixture
def files(tmp_path):
    return Annotation(tmp_path)


def read(files, source, **settings):
    """Read a table as the command does before it sends anything."""
    run = {"output": str(files.directory / "out.parquet")}
    settings = {"prompt": str(files.prompt), **settings}
    config = load_config(None, {"run": run, "annotate": settings}, {})
    table = Table(config, str(files.directory / source))
    table.files.state.mkdir()
    table.prepare(None, lambda: None).ingest(table.files.state, list, list)


async def refused(cli, files, server, source, *flags, output="out.parquet"):
    """The command's words, once it has refused the table and left nothing behind."""
    done = await cli.run(*files.argv(source, output, server), *flags)
    assert done.status == 2, done.err
    assert sends(server) == []
    assert not (files.directory / output).exists()
    assert not (files.directory / f"{output}.state").exists()
    assert "Traceback" not in done.err
    return done.err


@pytest.mark.parametrize(
    ("name", "content", "settings", "told"),
    [
        ("in.parquet", PARQUET.select(["day"]), {}, ["in.parquet, column text", "it has day"]),
        ("in.csv", "txt,stars\na,1\n", {}, ["in.csv, column text", "it has txt, stars"]),
        ("in.jsonl", [{"text": "a"}, {"txt": "b"}], {}, ["in.jsonl, row 2, column text", "undefined"]),
        ("in.parquet", PARQUET, {"columns": "text,size"}, ["in.parquet, column size"]),
        (
            "in.jsonl",
            [{"text": "a"}, {"text": "b", "n": 1}],
            {"columns": "n,size,text"},
            ["columns are missing", "in.jsonl, column size: no row has such a column"],
        ),
        (
            "in.jsonl",
            [{"text": "a", "n": 1}, {"text": "b", "n": "x"}],
            {},
            ["row 2, column n", "mixed types"],
        ),
        ("in.jsonl", [{"text": "a", "n": 2**70}], {}, ["row 1, column n", "64 bits"]),
        ("in.jsonl", '{"text": "a"}\n{"text": \n', {}, ["in.jsonl, row 2", "not JSON"]),
        ("in.jsonl", '{"text": "a"}\n["b"]\n', {}, ["in.jsonl, row 2", "not a JSON object"]),
        ("in.jsonl", b'{"text": "a"}\n{"x": 1, "text": "\xff"}\n', {}, ["row 2, column text", "not UTF-8"]),
        ("in.csv", b"text,n\na,1\nb,\xff\n", {}, ["in.csv, row 2, column n", "not UTF-8"]),
        ("in.csv", "text,n\na,1\n".encode("utf-16"), {}, ["in.csv", "column 1 of the header is not UTF-8"]),
        (
            "in.parquet",
            PARQUET.set_column(0, "text", NOT_UTF8),
            {},
            ["in.parquet, row 2, column text", "UTF8"],
        ),
        ("in.parquet", PARQUET.append_column("n", NOT_UTF8), {}, ["in.parquet, row 2, column n", "UTF8"]),
        ("in.csv", "text,n\na,1\nb\n", {}, ["in.csv, row 2", "1 cells where the header has 2"]),
        ("in.csv", 'text,n\n"a"b,1\n', {}, ["in.csv, row 1", "not CSV"]),
        ("in.csv", 'text,n\n"ab,1\n', {}, ["in.csv, row 1", "not CSV"]),
        (
            "in.csv.gz",
            gzip.compress(b"text,n\n" + b"a,1\n" * 999, mtime=0)[:40],
            {},
            ["in.csv.gz", "ends too early"],
        ),
        ("in.csv.gz", b"text,n\na,1\n", {}, ["in.csv.gz", "not a whole .gz archive"]),
        ("in.jsonl", [{"text": "a", "n": {}}], {}, ["in.jsonl, column n", "cannot be written", "--columns"]),
        (
            "in.jsonl",
            '{"text": "a", "n": %s}\n' % ("[" * 99 + "]" * 99),
            {},
            ["column n", "more than 60 deep"],
        ),
        (
            "in.parquet",
            pa.Table.from_arrays([["a"], ["b"]], ["text", "text"]),
            {},
            ["column text", "one name"],
        ),
        ("in.parquet", b"", {}, ["in.parquet", "not Parquet"]),
        ("in.csv", "text,text\na,b\n", {}, ["in.csv, column text", "twice"]),
        ("in.csv", "", {}, ["in.csv", "empty"]),
        ("in.csv", "text,n\n", {}, ["in.csv", "no row"]),
        ("in.jsonl", "", {}, ["in.jsonl", "no row"]),
        ("in.parquet", PARQUET.slice(0, 0), {}, ["in.parquet", "no row"]),
        ("in.parquet", PARQUET, {"where": "text = c"}, ["no row that meets --where"]),
        ("in.parquet", PARQUET, {"where": "size = 1"}, ["in.parquet", "column size"]),
        ("in.parquet", b"PAR1 not really", {}, ["in.parquet", "not Parquet"]),
        ("in.arrow", b"ARROW1 not really", {}, ["in.arrow", "not Arrow IPC"]),
        ("in.jsonl", [{"text": "a", "answer": 1}], {}, ["in.jsonl, row 1, column answer", "--prefix"]),
        ("in.csv", "text,answer\na,b\n", {}, ["in.csv, column answer", "--prefix"]),
        (
            "in.jsonl",
            [{"text": "a", "id": "x"}] * 2,
            {"id_column": "id"},
            ["row 2", "in.jsonl, row 1 has already"],
        ),
        ("in.jsonl", [{"text": "a", "id": None}], {"id_column": "id"}, ["row 1, column id", "no id"]),
        (
            "in.jsonl",
            [{"text": "a", "i": "no.png"}],
            {"image_columns": "i"},
            ["row 1, column i", "no file"],
        ),
        ("in.csv", "text,i\na,\n", {"image_columns": "i"}, ["in.csv, row 1, column i", "no image: empty"]),
        ("in.txt", "a\n", {}, ["in.txt", "no table"]),
        (
            "in.parquet",
            PARQUET,
            {"where": "day > soon"},
            ["in.parquet, row 1, column day", "cannot be compared"],
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(files, name, content, settings, told):
    files.file(name, content)
    with pytest.raises(InputError) as error:
        read(files, name, **settings)
    for words in told:
        assert words in str(error.value)


def test_a_directory_or_a_pattern_without_files_is_told(files):
    (files.directory / "none").mkdir()
    for name in ("none", "*.none"):
        with pytest.raises(InputError, match="no file is there"):
            read(files, name)


def test_damage_in_the_midst_of_a_parquet_file_is_told(files):
    path = files.file("in.parquet", pa.table({"text": [f"{number} a review" * 9 for number in range(900)]}))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 200] = bytes(200)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"in\.parquet: (damaged|not Parquet that can be read)"):
        read(files, "in.parquet")


@pytest.mark.parametrize("of_file", [pa.ipc.new_file, pa.ipc.new_stream])
def test_an_arrow_file_that_breaks_off_is_told(files, of_file):
    sink = pa.BufferOutputStream()
    with of_file(sink, pa.schema([("text", pa.string())])) as writer:
        for _ in range(4):
            writer.write_batch(pa.record_batch({"text": ["a" * 999] * 50}))
    files.file("in.arrow", sink.getvalue().to_pybytes()[:100_000])
    with pytest.raises(
        InputError, match=r"in\.arrow: (damaged behind row 50|not Arrow IPC that can be read)"
    ):
        read(files, "in.arrow")


def test_what_is_null_may_point_into_an_empty_dictionary(files):
    kind = pa.struct([("a", pa.dictionary(pa.int32(), pa.string()))])
    table = pa.table({"text": ["a"], "sparse": pa.array([None], kind)})
    with pa.ipc.new_file(files.directory / "in.arrow", table.schema) as writer:
        writer.write_table(table)
    read(files, "in.arrow")


def test_an_id_may_be_there_once_in_all_files(files):
    files.file("parts/a.csv", "text,id\na,1\n")
    files.file("parts/b.csv", "text,id\nb,2\nc,1\n")
    with pytest.raises(InputError, match=r"b\.csv, row 2: an id that .*a\.csv, row 1 has already"):
        read(files, "parts", id_column="id")


@pytest.mark.parametrize("column", FAR)
def test_times_that_python_has_not_can_be_asked_about_and_written(files, column):
    files.file("in.parquet", pa.table({"text": ["a"], "far": column}))
    files.file("prompt.md", "{{ far }}")
    read(files, "in.parquet")
    (row,) = rows_of(pa.RecordBatch.from_pydict({"far": column}))
    assert msgspec.json.decode(msgspec.json.encode(row))["far"]


def test_files_of_a_directory_must_have_the_same_columns(files):
    files.file("parts/a.parquet", PARQUET)
    files.file("parts/b.parquet", PARQUET.set_column(1, "day", pa.array(["x", "y"])))
    with pytest.raises(InputError, match=r"b\.parquet, column day"):
        read(files, "parts")


async def test_the_first_twenty_faults_are_listed_and_all_are_counted(cli, files, server):
    files.file("in.jsonl", [{"txt": "a"}] * 30)
    err = await refused(cli, files, server, "in.jsonl")
    assert "30 faults" in err
    assert err.count(", row ") == 20
    assert "and 10 more" in err


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.parquet"])
async def test_a_cell_of_ten_megabytes_is_no_trouble(cli, files, server, name):
    large = "x" * 10_000_000
    content = {
        "in.jsonl": [{"text": "row-0", "large": large}] * 3,
        "in.csv": "text,large\n" + f"row-0,{large}\n" * 3,
        "in.parquet": pa.table({"text": ["row-0"] * 3, "large": [large] * 3}),
    }
    files.file(name, content[name])
    done = await cli.run(*files.argv(name, "out.parquet", server))
    assert done.status == 0, done.err
    assert files.table("out.parquet")["large"].to_pylist() == [large] * 3


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--labels", "a,a"), "annotate.labels"),
        (("--schema", "none.json"), "annotate.answer_schema"),
        (("--schema", "prompt.md"), "annotate.answer_schema"),
        (("--where", "stars"), "annotate.where"),
        (("--system", "bad.md"), "bad.md, line 1"),
        (("--messages-column", "talk"), "annotate.messages_column"),
    ],
)
async def test_settings_that_cannot_be_used_are_named(cli, files, server, flags, told):
    files.file("in.jsonl", texts(1))
    files.file("bad.md", "{{ text")
    assert told in await refused(cli, files, server, "in.jsonl", *flags)


async def test_a_schema_that_is_none_is_refused(cli, files, server):
    files.file("in.jsonl", texts(1))
    schema = files.file("schema.json", json.dumps({"type": "thing"}))
    assert "not a JSON schema" in await refused(cli, files, server, "in.jsonl", "--schema", schema)


def test_a_prompt_cannot_reach_beyond_its_row(files):
    files.file("in.jsonl", texts(1))
    files.file("prompt.md", "{{ text.__class__.__mro__ }}")
    with pytest.raises(InputError, match=r"in\.jsonl, row 1"):
        read(files, "in.jsonl")


def test_a_schema_must_leave_our_own_columns_their_names(files):
    files.file("in.jsonl", texts(1))
    schema = files.file("schema.json", {"type": "object", "properties": {"error": {"type": "string"}}})
    with pytest.raises(ConfigError, match="two columns would be called answer_error"):
        read(files, "in.jsonl", answer_schema=str(schema))


def test_the_output_must_not_be_an_input(files):
    files.file("out.parquet", PARQUET)
    run = {"output": str(files.directory / "out.parquet")}
    config = load_config(None, {"run": run, "annotate": {"prompt": str(files.prompt)}}, {})
    with pytest.raises(ConfigError, match="an input"):
        Table(config, str(files.directory / "out.parquet")).check()
