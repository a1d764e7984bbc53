"""Rows annotated from Python."""

import asyncio
import json
import math

import pyarrow as pa
import pytest
from jobs import sends
from tables import Annotation, texts

from dispatcher import BlockingDispatcher, ConfigError, Dispatcher, InputError
from dispatcher.testing.faults import Match, Respond

USAGE = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
ASKED = {"prompt": "Is this positive? {{ text }}", "labels": ["yes", "no"]}


async def test_rows_come_back_with_their_answers(server):
    async with Dispatcher(servers=[server.url]) as d:
        rows = [row async for row in d.annotate(texts(20), **ASKED)]
    assert sorted(row["text"] for row in rows) == [row["text"] for row in texts(20)]
    assert {row["answer"] for row in rows} <= {"yes", "no"}
    assert {row["answer_server"] for row in rows} == {server.url}


async def test_rows_may_come_from_an_async_iterable_a_file_or_a_table_in_memory(server, tmp_path):
    async def rows():
        for row in texts(3):
            yield row

    table = pa.Table.from_pylist(texts(3))
    source = Annotation(tmp_path).file("in.parquet", table)
    async with Dispatcher(servers=[server.url]) as d:
        for given in (rows(), source, str(source), table, table.to_reader()):
            assert len([row async for row in d.annotate(given, **ASKED, prefix="y")]) == 3


async def test_blocking_code_has_it_too(server):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    def work():
        with BlockingDispatcher(servers=[server.url]) as d:
            return list(d.annotate(texts(1), prompt="{{ text }}", system="Be {{ stars }}", schema=schema))

    (row,) = await asyncio.to_thread(work)
    assert isinstance(row["answer_n"], int)


async def test_an_answer_that_the_caller_refuses_is_asked_again(server):
    seen = []

    def valid(answer):
        seen.append(answer)
        if len(seen) < 3:
            raise ValueError("not yet")

    async with Dispatcher(servers=[server.url]) as d:
        (row,) = [row async for row in d.annotate(texts(1), **ASKED, valid=valid)]
    assert len(seen) == 3
    assert row["answer"] == seen[-1]
    assert row["answer_attempts"] == 3


async def test_an_answer_that_was_cut_is_asked_again_with_twice_the_room(server):
    async with Dispatcher(servers=[server.url]) as d:
        rows = [
            row async for row in d.annotate(texts(20), prompt="{{ text }}", max_tokens=4, validate_retries=5)
        ]
    assert all(row["answer_error"] is None for row in rows)
    assert {row["answer_finish_reason"] for row in rows} == {"stop"}
    assert max(row["answer_completion_tokens"] for row in rows) > 4


async def test_an_answer_that_was_cut_gets_no_more_than_the_model_s_context_has(server):
    """The fake refuses what is beyond it, as vLLM 0.32.0 does."""
    choice = {"index": 0, "message": {"content": "a"}, "finish_reason": "length"}
    cut = Respond(200, json.dumps({"model": "fake-model", "choices": [choice], "usage": USAGE}))
    server.inject(cut, Match(text="row"), times=1)
    async with Dispatcher(servers=[server.url]) as d:
        (row,) = [row async for row in d.annotate(texts(1), prompt="{{ text }}", max_tokens=8000)]
    assert (row["answer_error"], row["answer_finish_reason"]) == (None, "stop")
    assert row["answer_prompt_tokens"] > USAGE["prompt_tokens"], "both answers' tokens count"
    assert len(sends(server)) == 2


async def test_labels_come_with_the_probability_of_each(server):
    labels = ["good", "goodish", "bad", "schön", "schon"]
    async with Dispatcher(servers=[server.url]) as d:
        asked = {"prompt": "{{ text }}", "labels": labels, "confidence": True}
        rows = [row async for row in d.annotate(texts(12), **asked)]
    for row in rows:
        shares = row["answer_probabilities"]
        assert list(shares) == labels
        assert math.fsum(shares.values()) == pytest.approx(1)
        assert row["answer_confidence"] == shares[row["answer"]] == max(shares.values())
        assert row["answer_coverage"] > 0.9
        assert row["answer_approximate"] == (row["answer_coverage"] < 1)
    assert {record.route for record in server.requests} == {
        "/v1/chat/completions",
        "/v1/completions",
        "/tokenize",
        "/detokenize",
    }
    assert max(row["answer_attempts"] for row in rows) > 2


SHAPE = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    "asked", [{"labels": ["yes", "no"]}, {"labels": ["yes", "no"], "confidence": True}, {"schema": SHAPE}]
)
async def test_each_server_of_a_mixed_fleet_is_asked_as_its_version_understands_it(serve, asked):
    servers = [await serve(version=version) for version in ("0.6.1", "0.10.2", "0.11.0", "0.32.0")]
    async with Dispatcher(servers=[server.url for server in servers], pool={"limit": 2}) as d:
        rows = [row async for row in d.annotate(texts(40), prompt="{{ text }}", **asked)]
    assert {row["answer_error"] for row in rows} == {None}
    assert all(sends(server) for server in servers)


async def test_a_constraint_that_is_ignored_never_gives_free_text(serve):
    """A pre-release does not tell what it understands, and this one is too old."""
    server = await serve(version="0.10.2rc1")
    async with Dispatcher(servers=[server.url]) as d:
        for asked in ({"labels": ["yes", "no"]}, {"labels": ["yes", "no"], "confidence": True}):
            rows = [row async for row in d.annotate(texts(3), prompt="{{ text }}", **asked)]
            assert {row["answer"] for row in rows} == {None}
            assert {row["answer_error_code"] for row in rows} == {"invalid_answer"}


async def test_a_table_is_annotated_in_files(server, tmp_path):
    files = Annotation(tmp_path)
    source = files.file("in.jsonl", texts(5))
    async with Dispatcher(servers=[server.url]) as d:
        summary = await d.annotate_table(source, tmp_path / "out.parquet", prompt=str(files.prompt), limit=4)
    assert (summary.exit_code, summary.snapshot.done.succeeded) == (0, 4)
    assert files.table("out.parquet").num_rows == 4


async def test_a_table_s_answers_are_shown_to_the_caller_s_check(server, tmp_path):
    files = Annotation(tmp_path)
    source = files.file("in.jsonl", texts(3))
    seen = []

    def valid(answer):
        seen.append(answer)
        if len(seen) == 1:
            raise ValueError("not the first")

    async with Dispatcher(servers=[server.url]) as d:
        asked = {"prompt": str(files.prompt), "valid": valid}
        summary = await d.annotate_table(source, tmp_path / "out.jsonl", labels="yes,no", **asked)
        steps = [{"name": "a", "prompt": str(files.prompt)}]
        with pytest.raises(ConfigError, match="steps"):
            await d.annotate_table(source, tmp_path / "b.jsonl", steps=steps, valid=valid)
    assert (summary.exit_code, len(seen), len(sends(server))) == (0, 4, 4)


async def test_what_cannot_be_asked_is_an_error(server):
    async with Dispatcher(servers=[server.url]) as d:
        with pytest.raises(InputError, match="rows, row 1, column text"):
            _ = [row async for row in d.annotate([{"text": "a"}, {}], prompt="{{ text }}")]
        with pytest.raises(ConfigError, match="prompt"):
            _ = [row async for row in d.annotate(texts(1))]
        with pytest.raises(ConfigError, match="together with labels"):
            _ = [row async for row in d.annotate(texts(1), **ASKED, schema={"type": "object"})]
        with pytest.raises(ConfigError, match="needs annotate"):
            _ = [row async for row in d.annotate(texts(1), prompt="a", confidence=True)]
        with pytest.raises(ConfigError, match="likeliest"):
            _ = [row async for row in d.annotate(texts(1), **ASKED, confidence=True, temperature=1)]
        with pytest.raises(ConfigError, match="must not have n"):
            _ = [row async for row in d.annotate(texts(1), **ASKED, extra_body={"n": 2})]
        with pytest.raises(ConfigError, match="not a JSON schema"):
            _ = [row async for row in d.annotate(texts(1), prompt="a", schema={"type": 1})]


async def test_settings_that_a_stream_of_rows_would_ignore_are_refused(server):
    settings = {"id_column": "id", "where": ["stars > 1"], "limit": 2, "columns": ["text"]}
    settings |= {"drop_invalid": True, "output_format": "csv"}
    async with Dispatcher(servers=[server.url]) as d:
        for name, value in settings.items():
            with pytest.raises(ConfigError, match=f"annotate.{name}: is for annotate_table alone"):
                await anext(d.annotate(texts(3), **ASKED, **{name: value}))
    assert sends(server) == []


async def test_a_row_that_is_no_mapping_is_told(server):
    async with Dispatcher(servers=[server.url]) as d:
        with pytest.raises(InputError, match="must be a mapping of columns, got str"):
            await anext(d.annotate(["a text"], **ASKED))
