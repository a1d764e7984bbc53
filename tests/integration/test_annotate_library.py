"""Rows annotated from Python."""

import asyncio
import json

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


async def test_rows_may_come_from_an_async_iterable_or_a_file(server, tmp_path):
    async def rows():
        for row in texts(3):
            yield row

    source = Annotation(tmp_path).file("in.parquet", pa.Table.from_pylist(texts(3)))
    async with Dispatcher(servers=[server.url]) as d:
        for given in (rows(), source, str(source)):
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


async def test_a_table_is_annotated_in_files(server, tmp_path):
    files = Annotation(tmp_path)
    source = files.file("in.jsonl", texts(5))
    async with Dispatcher(servers=[server.url]) as d:
        summary = await d.annotate_table(source, tmp_path / "out.parquet", prompt=str(files.prompt), limit=4)
    assert (summary.exit_code, summary.snapshot.done.succeeded) == (0, 4)
    assert files.table("out.parquet").num_rows == 4


async def test_what_cannot_be_asked_is_an_error(server):
    async with Dispatcher(servers=[server.url]) as d:
        with pytest.raises(InputError, match="rows, row 1, column text"):
            _ = [row async for row in d.annotate([{"text": "a"}, {}], prompt="{{ text }}")]
        with pytest.raises(ConfigError, match="prompt"):
            _ = [row async for row in d.annotate(texts(1))]
        with pytest.raises(ConfigError, match="not a JSON schema"):
            _ = [row async for row in d.annotate(texts(1), prompt="a", schema={"type": 1})]
