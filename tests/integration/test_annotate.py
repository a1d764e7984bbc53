"""One `dispatcher annotate`, from the command to the table."""

import csv
import datetime as dt
import decimal
import gzip
import json
import signal

import pyarrow as pa
import pytest
from commands import until
from jobs import recorded_in, sends
from tables import Annotation, texts

from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.faults import Match, Respond
from dispatcher.testing.presets import PRESETS

NEW = [
    "answer",
    "answer_finish_reason",
    "answer_prompt_tokens",
    "answer_completion_tokens",
    "answer_error",
    "answer_error_code",
    "answer_server",
    "answer_attempts",
]
SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "enum": ["good", "bad"]},
        "score": {"type": "integer", "minimum": 0, "maximum": 9},
        "sure": {"type": ["boolean", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object"},
    },
    "required": ["label", "score", "sure", "tags"],
}


@pytest.fixture
def files(tmp_path):
    return Annotation(tmp_path)


def every_type(count):
    """A table with a column of every kind."""
    day = dt.date(2024, 2, 29)
    moment = dt.datetime(2024, 2, 29, 12, 30, 1, 250, tzinfo=dt.UTC)
    return pa.table(
        {
            "text": [f"row-{number:05} a review" for number in range(count)],
            "small": pa.array([number % 100 for number in range(count)], pa.int8()),
            "unsigned": pa.array([2**64 - 1] * count, pa.uint64()),
            "half": pa.array([1.5, None] * (count // 2), pa.float32()),
            "flag": [True, None] * (count // 2),
            "none": pa.nulls(count),
            "day": [day] * count,
            "moment": pa.array([moment] * count, pa.timestamp("us", "UTC")),
            "nanoseconds": pa.array([1] * count, pa.timestamp("ns")),
            "time": pa.array([dt.time(1, 2, 3)] * count, pa.time64("us")),
            "duration": pa.array([dt.timedelta(seconds=1)] * count, pa.duration("us")),
            "price": pa.array([decimal.Decimal("1.50")] * count, pa.decimal128(5, 2)),
            "bytes": [b"\x00\xff", None] * (count // 2),
            "large": pa.array(["a" * 100] * count, pa.large_string()),
            "large_bytes": pa.array([b"\x00"] * count, pa.large_binary()),
            "category": pa.array(["u", "v"] * (count // 2)).dictionary_encode(),
            "list": [[1, None], None] * (count // 2),
            "nested": [{"a": [{"b": "c"}], "d": None}] * count,
            "map": pa.array([[("k", 1)]] * count, pa.map_(pa.string(), pa.int64())),
            "fixed": pa.array([[1.0, 2.0]] * count, pa.list_(pa.float32(), 2)),
        }
    )


async def test_every_type_of_column_comes_back_as_it_was(cli, files, server):
    table = every_type(250)
    files.file("in.parquet", table)
    done = await cli.run(
        *files.argv("in.parquet", "out.parquet", server), "--labels", "good,bad", "--shard-size", 7
    )
    assert done.status == 0, done.err
    out = files.table("out.parquet")
    assert out.column_names == [*table.column_names, *NEW]
    assert out.select(table.column_names).equals(files.table("in.parquet"))
    assert set(out["answer"].to_pylist()) <= {"good", "bad"}
    assert out["answer_error"].null_count == 250
    assert sorted(sends(server)) == [f"row-{number:05}" for number in range(250)]
    assert not (files.directory / "out.parquet.state").exists()


async def test_an_arrow_file_has_the_same_columns_but_for_dictionaries(cli, files, server):
    table = every_type(250)
    files.file("in.parquet", table)
    done = await cli.run(*files.argv("in.parquet", "out.arrow", server), "--shard-size", 7)
    assert done.status == 0, done.err
    given, out = files.table("in.parquet"), files.table("out.arrow")
    assert out["category"].to_pylist() == given["category"].to_pylist()
    names = [name for name in given.column_names if name != "category"]
    assert out.select(names).equals(given.select(names))
    again = await cli.run(*files.argv("out.arrow", "again.parquet", server), "--prefix", "second")
    assert again.status == 0, again.err
    assert files.table("again.parquet").select(out.column_names).equals(out)


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.tsv"])
async def test_a_table_of_columns_can_become_text(cli, files, server, name):
    files.file("in.parquet", every_type(10))
    done = await cli.run(*files.argv("in.parquet", name, server))
    assert done.status == 0, done.err
    content = (files.directory / name).read_bytes()
    assert content.count(b"row-00009") == 1


async def test_json_lines_keep_their_bytes_and_get_members(cli, files, server):
    lines = '{"text": "row-00000",  "n": 1.0, "odd": {"a": 1}}\n\n{"n": "x", "text": "row-00001 \\u00e9"}\n'
    files.file("in.jsonl", lines)
    done = await cli.run(*files.argv("in.jsonl", "out.jsonl", server))
    assert done.status == 0, done.err
    out = (files.directory / "out.jsonl").read_text().splitlines()
    for line, given in zip(out, [lines.split("\n", maxsplit=1)[0], lines.split("\n")[2]], strict=True):
        assert line.startswith(given[:-1] + ',"answer":"')
        assert list(json.loads(line))[-8:] == NEW


async def test_json_lines_become_typed_columns(cli, files, server):
    files.file("in.jsonl", [{"text": "row-1", "n": 1}, {"text": "row-2", "n": 2.5, "tags": ["a", None]}])
    done = await cli.run(*files.argv("in.jsonl", "out.parquet", server))
    assert done.status == 0, done.err
    out = files.table("out.parquet")
    assert out["n"].to_pylist() == [1.0, 2.5]
    assert out["tags"].to_pylist() == [None, ["a", None]]


async def test_a_csv_keeps_every_cell_as_text(cli, files, server):
    rows = [["text", "zip"], ['row-1 "quoted", and\na new line', "01234"], ["row-2", "NA"]]
    with (files.directory / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    done = await cli.run(*files.argv("in.csv", "out.csv", server))
    assert done.status == 0, done.err
    with (files.directory / "out.csv").open(newline="") as file:
        out = list(csv.reader(file))
    assert [row[:2] for row in out] == rows
    assert out[0][2:] == NEW


async def test_a_directory_is_one_table_in_the_order_of_its_files(cli, files, server):
    table = every_type(20)
    files.file("parts/b.parquet", table.slice(10))
    files.file("parts/a.parquet", table.slice(0, 10))
    done = await cli.run(*files.argv("parts", "out.parquet", server), "--shard-size", 8)
    assert done.status == 0, done.err
    assert files.table("out.parquet")["text"].equals(table["text"])


async def test_a_folder_of_hugging_face_datasets_is_a_table(cli, files, server):
    """`save_to_disk` writes Arrow streams beside descriptions in JSON."""
    table = pa.Table.from_pylist(texts(10))
    for number in range(2):
        path = files.file(f"set/data-{number:05}-of-00002.arrow", b"")
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table.slice(5 * number, 5), max_chunksize=2)
    files.file("set/dataset_info.json", {"features": {}})
    files.file("set/state.json", {"_split": None})
    done = await cli.run(*files.argv("set", "out.jsonl", server))
    assert done.status == 0, done.err
    assert [line["text"] for line in files.lines("out.jsonl")] == table["text"].to_pylist()


async def test_a_pattern_of_packed_files_is_a_table(cli, files, server):
    for number, row in enumerate(texts(3)):
        files.file(f"part-{number}.csv.gz", gzip.compress(f"text,n\n{row['text']},1\n".encode()))
    done = await cli.run(*files.argv("part-*.csv.gz", "out.tsv", server), "--id-column", "text")
    assert done.status == 0, done.err
    cells = [line.split("\t")[0] for line in (files.directory / "out.tsv").read_text().splitlines()]
    assert cells == ["text", *(row["text"] for row in texts(3))]


async def test_images_are_sent_with_the_prompt(cli, files, server):
    image = files.file("a.png", b"\x89PNG row-00007")
    files.file("in.jsonl", [{"text": "row-00001", "image": str(image)}])
    done = await cli.run(*files.argv("in.jsonl", "out.jsonl", server), "--image-columns", "image")
    assert done.status == 0, done.err
    assert sends(server) == ["row-00001"]


async def test_a_stop_while_rows_are_answered_can_be_gone_on_from(cli, files, serve):
    server = await serve(engine=EngineSettings(), answer_tokens=4)
    files.file("in.csv", "text\n" + "".join(f"row-{number:05}\n" for number in range(80)))
    argv = [*files.argv("in.csv", "out.csv", server), "--shard-size", 10, "--concurrency", 4]
    stopped = await cli.start(*argv)
    await until(lambda: len(sends(server)) > 20)
    stopped.send(signal.SIGTERM)
    assert (await stopped.wait()).status == 3
    assert not (files.directory / "out.csv").exists()
    (files.directory / "in.csv").unlink()
    gone = await cli.run(*argv)
    assert (gone.status, "no such file" in gone.err) == (2, True)
    files.file("in.csv", "text\n" + "".join(f"row-{number:05}\n" for number in range(80)))
    done = await cli.run(*argv)
    assert done.status == 0, done.err
    assert sorted(sends(server)) == [f"row-{number:05}" for number in range(80)]


async def test_a_schemas_properties_are_typed_columns(cli, files, server):
    files.file("in.jsonl", texts(20))
    schema = files.file("schema.json", SCHEMA)
    done = await cli.run(*files.argv("in.jsonl", "out.parquet", server), "--schema", schema, "--prefix", "r")
    assert done.status == 0, done.err
    out = files.table("out.parquet")
    types = {name: out.schema.field(f"r_{name}").type for name in SCHEMA["properties"]}
    assert types == {
        "label": pa.string(),
        "score": pa.int64(),
        "sure": pa.bool_(),
        "tags": pa.list_(pa.string()),
        "more": pa.string(),
    }
    assert set(out["r_label"].to_pylist()) <= {"good", "bad"}
    assert all(0 <= score <= 9 for score in out["r_score"].to_pylist())


async def test_rows_and_columns_are_chosen(cli, files, server):
    files.file("in.jsonl", texts(20))
    chosen = ["--where", "stars >= 3", "--where", "text != 'x'", "--limit", 3, "--columns", "stars"]
    done = await cli.run(*files.argv("in.jsonl", "out.jsonl", server), *chosen)
    assert done.status == 0, done.err
    assert sorted(sends(server)) == ["row-00003", "row-00004", "row-00008"]
    assert [list(line)[:2] for line in files.lines("out.jsonl")] == [["stars", "answer"]] * 3


async def test_a_failed_row_keeps_its_columns_and_says_why(cli, files, server):
    server.inject(PRESETS["context_length_400"], Match(text="row-00002"))
    files.file("in.jsonl", texts(4))
    done = await cli.run(*files.argv("in.jsonl", "out.jsonl", server))
    assert done.status == 1
    out = files.lines("out.jsonl")
    assert [line["text"] for line in out] == [row["text"] for row in texts(4)]
    assert [line["answer_error_code"] for line in out] == [None, None, "context_length", None]
    assert out[2]["answer"] is None
    assert out[2]["answer_server"] == server.url
    assert "--retry-failed" in done.err
    server.clear()
    again = await cli.run(*files.argv("in.jsonl", "out.jsonl", server), "--retry-failed")
    assert again.status == 0, again.err
    assert files.lines("out.jsonl")[2]["answer_error_code"] is None


def answer(content, finish_reason="stop"):
    """A fault that is no fault to a server: an answer of ours."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content},
        "finish_reason": finish_reason,
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return Respond(200, json.dumps({"model": "fake-model", "choices": [choice], "usage": usage}))


@pytest.mark.parametrize("content", ["", "maybe", "goo"])
async def test_an_answer_that_is_no_label_is_asked_again_with_another_seed(cli, files, server, content):
    server.inject(answer(content), Match(text="row-00001", first=2))
    files.file("in.jsonl", texts(3))
    done = await cli.run(*files.argv("in.jsonl", "out.jsonl", server), "--labels", "good,bad")
    assert done.status == 0, done.err
    assert sends(server).count("row-00001") == 3
    assert files.lines("out.jsonl")[1]["answer"] in {"good", "bad"}
    assert files.lines("out.jsonl")[1]["answer_attempts"] == 3


@pytest.mark.parametrize("drop", [False, True])
async def test_a_row_that_is_never_answered_well_is_marked_or_dropped(cli, files, server, drop):
    server.inject(answer("perhaps"), Match(text="row-00001"))
    files.file("in.jsonl", texts(3))
    flags = ["--labels", "good,bad", "--validate-retries", 2, *(["--drop-invalid"] if drop else [])]
    done = await cli.run(*files.argv("in.jsonl", "out.jsonl", server), *flags)
    assert done.status == 1
    assert sends(server).count("row-00001") == 3
    out = files.lines("out.jsonl")
    proven = await cli.run(*files.argv("in.jsonl", "out.jsonl", server), *flags, "--verify")
    assert proven.status == 0, proven.out
    if drop:
        assert [line["text"][:9] for line in out] == ["row-00000", "row-00002"]
    else:
        assert (out[1]["answer"], out[1]["answer_error_code"]) == (None, "invalid_answer")
        assert "perhaps" in out[1]["answer_error"]
        tokens = (out[1]["answer_prompt_tokens"], out[1]["answer_completion_tokens"])
        assert tokens == (9, 6), "all three answers have cost"


async def test_thoughts_are_kept_apart(cli, files, server):
    server.inject(answer("<think>\nhm\n</think>\n\ngood"), Match(text="row"))
    files.file("in.jsonl", texts(1))
    flags = ["--labels", "good,bad", "--keep-reasoning"]
    done = await cli.run(*files.argv("in.jsonl", "out.jsonl", server), *flags)
    assert done.status == 0, done.err
    (line,) = files.lines("out.jsonl")
    assert (line["answer"], line["answer_reasoning"]) == ("good", "hm")


async def test_a_killed_annotation_goes_on_and_asks_nothing_twice(cli, files, serve):
    server = await serve(engine=EngineSettings(), answer_tokens=4)
    table = every_type(300)
    files.file("in.parquet", table)
    argv = [*files.argv("in.parquet", "out.parquet", server), "--shard-size", 30, "--concurrency", 8]
    state = files.directory / "out.parquet.state"

    def recorded():
        return recorded_in(state.glob("journal/*/*/*.journal"))

    killed = await cli.start(*argv)
    await until(lambda: len(recorded()) > 50)
    await killed.kill()
    before = recorded()
    asked = len(sends(server))
    done = await cli.run(*argv)
    assert done.status == 0, done.err
    assert len(sends(server)) - asked == 300 - len(before)
    out = files.table("out.parquet")
    assert out.select(table.column_names).equals(files.table("in.parquet"))
    assert out["answer"].null_count == 0


async def test_another_prompt_or_table_is_refused_once_rows_are_answered(cli, files, server):
    server.inject(PRESETS["context_length_400"], Match(text="row-00002"))
    files.file("in.jsonl", texts(4))
    argv = files.argv("in.jsonl", "out.jsonl", server)
    assert (await cli.run(*argv)).status == 1
    same = await cli.run(*argv)
    assert same.status == 1
    assert "finished before" in same.err
    files.file("prompt.md", "Another: {{ text }}")
    other = await cli.run(*argv)
    assert other.status == 2
    assert "annotate.prompt" in other.err
    files.file("prompt.md", "Is this positive? {{ text }}\n")
    files.file("in.jsonl", texts(5))
    changed = await cli.run(*argv)
    assert changed.status == 2
    assert "not the table" in changed.err


async def test_a_table_that_stands_in_the_outputs_place_is_not_replaced(cli, files, server):
    files.file("in.jsonl", texts(2))
    files.file("out.jsonl", "mine\n")
    done = await cli.run(*files.argv("in.jsonl", "out.jsonl", server))
    assert done.status == 2
    assert "--restart" in done.err
    assert (files.directory / "out.jsonl").read_text() == "mine\n"
    assert (await cli.run(*files.argv("in.jsonl", "out.jsonl", server), "--restart")).status == 0


@pytest.mark.parametrize("name", ["out.parquet", "out.arrow", "out.jsonl", "out.csv"])
async def test_a_table_that_says_it_is_the_answer_is_finished(cli, files, server, name):
    files.file("in.jsonl", texts(9))
    argv = files.argv("in.jsonl", name, server)
    assert (await cli.run(*argv)).status == 0
    again = await cli.run(*argv)
    assert again.status == 0, again.err
    assert "finished before: 9 of 9 rows succeeded" in again.err
    assert len(sends(server)) == 9
    files.file("prompt.md", "Another: {{ text }}")
    other = await cli.run(*argv)
    assert other.status == 2
    assert "exists already" in other.err


async def test_a_text_table_that_was_changed_since_is_not_taken_for_finished(cli, files, server):
    files.file("in.jsonl", texts(3))
    argv = files.argv("in.jsonl", "out.csv", server)
    assert (await cli.run(*argv)).status == 0
    out = files.directory / "out.csv"
    out.write_text(out.read_text().replace("row-00001", "row-1"))
    again = await cli.run(*argv)
    assert (again.status, "exists already" in again.err) == (2, True)
    assert (await cli.run(*argv, "--restart")).status == 0
    assert (await cli.run(*argv)).status == 0
    assert len(sends(server)) == 6


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("in.parquet", "out.parquet"),
        ("in.parquet", "out.jsonl"),
        ("in.parquet", "out.csv"),
        ("in.jsonl", "out.arrow"),
        ("in.jsonl", "out.jsonl"),
        ("in.jsonl", "out.csv"),
        ("in.csv", "out.parquet"),
    ],
)
async def test_the_same_command_proves_its_output(cli, files, server, source, name):
    server.inject(PRESETS["context_length_400"], Match(text="row-00004"))
    rows = [{**row, "n": 1.0, "tags": ["a", None]} for row in texts(20)]
    lines = "".join(f"{row['text']},{row['stars']}\n" for row in rows)
    content = {"in.parquet": every_type(20), "in.jsonl": rows, "in.csv": f"text,stars\n{lines}"}
    files.file(source, content[source])
    argv = [*files.argv(source, name, server), "--where", "text != 'x'", "--limit", 15]
    assert (await cli.run(*argv)).status == 1
    sent = len(sends(server))
    proven = await cli.run(*argv, "--verify")
    assert proven.status == 0, proven.out + proven.err
    assert "15 rows, each with exactly one outcome, in order: 14 answers and 1 errors" in proven.out
    assert len(sends(server)) == sent


async def test_what_is_wrong_with_an_output_is_told(cli, files, server):
    files.file("in.jsonl", texts(6))
    argv = files.argv("in.jsonl", "out.jsonl", server)
    assert (await cli.run(*argv)).status == 0
    lines = files.lines("out.jsonl")
    lines[1]["stars"] = 9
    lines[2]["answer"] = None
    lines[3]["answer_error_code"] = "timeout"
    files.file("out.jsonl", [*lines[:5], lines[0]])
    disproved = await cli.run(*argv, "--verify")
    assert disproved.status == 1
    told = [line.split("out.jsonl, ")[1] for line in disproved.out.splitlines()[1:]]
    assert [line.split(":")[0] for line in told] == ["row 2", "row 3", "row 4", "row 6"]
    files.file("out.jsonl", lines[:4])
    assert "in.jsonl, row 5: missing in the output" in (await cli.run(*argv, "--verify")).out
    files.file("out.jsonl", [*lines, lines[5]])
    assert "one row more" in (await cli.run(*argv, "--verify")).out


@pytest.mark.parametrize("name", ["out.parquet", "out.csv"])
async def test_probabilities_are_written_with_their_labels_and_proved(cli, files, server, name):
    files.file("in.jsonl", texts(6))
    argv = [*files.argv("in.jsonl", name, server), "--labels", "good,bad", "--confidence"]
    done = await cli.run(*argv)
    assert done.status == 0, done.err
    proven = await cli.run(*argv, "--verify")
    assert proven.status == 0, proven.out
    if name == "out.parquet":
        shares = pa.struct([pa.field("good", pa.float64()), pa.field("bad", pa.float64())])
        assert files.table(name).schema.field("answer_probabilities").type == shares
        return
    out = files.directory / name
    out.write_text(out.read_text().replace(",good,", ",fine,").replace(",bad,", ",fine,"))
    disproved = await cli.run(*argv, "--verify")
    assert (disproved.status, disproved.out.count("not one of the labels")) == (1, 6)


async def test_ready_conversations_are_sent_as_they_are(cli, files, server):
    conversation = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "row-7"}]
    files.file("in.jsonl", [{"talk": conversation}])
    argv = files.argv("in.jsonl", "out.jsonl", server, prompt=False)
    done = await cli.run(*argv, "--messages-column", "talk")
    assert done.status == 0, done.err
    assert sends(server) == ["row-7"]


async def test_a_preview_shows_prompts_and_asks_nobody_where_there_is_nobody(cli, files):
    files.file("in.jsonl", texts(20))
    argv = ["annotate", files.directory / "in.jsonl", "--prompt", files.prompt, "--preview", 2]
    done = await cli.run(*argv, "--where", "stars = 4")
    assert done.status == 0, done.err
    assert done.out.splitlines() == [
        f"--- {files.directory}/in.jsonl, row 5",
        "[user] Is this positive? row-00004 a review",
        "",
        f"--- {files.directory}/in.jsonl, row 10",
        "[user] Is this positive? row-00009 a review",
        "",
    ]
    assert sorted(path.name for path in files.directory.glob("*.jsonl*")) == ["in.jsonl"]


async def test_a_preview_with_servers_shows_answers(cli, files, server):
    server.inject(answer("perhaps"), Match(text="row-00001"))
    files.file("in.jsonl", texts(20))
    argv = ["annotate", files.directory / "in.jsonl", "--prompt", files.prompt, "--server", server.url]
    done = await cli.run(*argv, "--labels", "good,bad", "--preview", 3)
    assert done.status == 1, done.err
    assert len(set(sends(server))) == 3
    shown = done.out.split("--- ")[1:]
    assert ["answer: " in part for part in shown] == [True, False, True]
    assert "answer_error_code: invalid_answer" in shown[1]


async def test_without_a_question_or_an_output_it_says_what_is_missing(cli, files, server):
    files.file("in.jsonl", texts(1))
    asked = await cli.run(*files.argv("in.jsonl", "out.jsonl", server, prompt=False))
    assert (asked.status, "annotate.prompt" in asked.err) == (2, True)
    named = await cli.run(*files.argv("in.jsonl", "out.txt", server))
    assert (named.status, "run.output" in named.err) == (2, True)
