"""Several questions in a row, stopped, killed and retried."""

import json
import signal

import pytest
from commands import until
from jobs import recorded_in, sends
from tables import TWO_STEPS as TWO
from tables import in_steps as argv
from tables import steps_files, texts

from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.faults import Match, Respond
from dispatcher.testing.presets import PRESETS

EMPTY = Respond(
    200,
    json.dumps(
        {
            "model": "fake-model",
            "choices": [{"index": 0, "message": {"content": ""}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3},
        }
    ),
)


@pytest.fixture
def files(tmp_path):
    return steps_files(tmp_path)


async def test_rows_that_a_step_has_failed_are_asked_again_in_all_steps_that_need_it(cli, files, server):
    server.inject(PRESETS["context_length_400"], Match(text="Topic of row-00002"))
    files.file("in.jsonl", texts(5))
    files.file("alone.md", "Say something about {{ text }}")
    steps = [*TWO, {"name": "alone", "prompt": "alone.md"}, {"name": "more", "prompt": "more.md"}]
    files.file("more.md", "{{ reason }}: more on {{ text }}")
    command = argv(files, server, "out.jsonl", steps)
    done = await cli.run(*command)
    assert done.status == 1
    line = files.lines("out.jsonl")[2]
    assert (line["topic"], line["topic_error_code"]) == (None, "context_length")
    assert (line["reason"], line["reason_error_code"]) == (None, "not_asked")
    assert line["reason_error"] == "step topic has no answer: context_length"
    assert line["reason_server"] is None
    assert line["alone"], "it needs none of the others"
    assert line["more_error"] == "step reason has no answer: not_asked"
    assert sends(server).count("row-00002") == 2
    assert "step reason, finished: 4 of 5 rows succeeded, 1 failed" in done.err
    proven = await cli.run(*command, "--verify")
    assert (proven.status, "4 answers and 1 errors" in proven.out) == (0, True)
    again = await cli.run(*command)
    assert again.status == 1
    assert "finished before" in again.err
    before = len(sends(server))
    server.clear()
    retried = await cli.run(*command, "--retry-failed")
    assert retried.status == 0, retried.err
    assert files.lines("out.jsonl")[2]["more"]
    assert sends(server)[before:] == ["row-00002"] * 3
    assert not (files.directory / "out.jsonl.state").exists()


async def test_rows_with_an_invalid_answer_of_any_step_can_be_dropped(cli, files, server):
    server.inject(EMPTY, Match(text="Why is row-00001"))
    files.file("in.jsonl", texts(3))
    done = await cli.run(*argv(files, server, drop_invalid=True), "--validate-retries", 0)
    assert done.status == 1
    assert [line["text"][:9] for line in files.lines("out.jsonl")] == ["row-00000", "row-00002"]


@pytest.mark.parametrize("step", ["topic", "reason"])
async def test_a_killed_run_goes_on_in_the_step_it_was_in(cli, files, serve, step):
    server = await serve(engine=EngineSettings(), answer_tokens=4)
    files.file("in.jsonl", texts(60))
    command = [*argv(files, server, "out.parquet"), "--shard-size", 10, "--concurrency", 4]
    state = files.directory / "out.parquet.state" / "steps"

    def recorded(name):
        return recorded_in((state / name).glob("journal/*/*/*.journal"))

    killed = await cli.start(*command)
    await until(lambda: len(recorded(step)) > 15)
    await killed.kill()
    before = len(recorded("topic")) + len(recorded("reason"))
    asked = len(sends(server))
    done = await cli.run(*command)
    assert done.status == 0, done.err
    assert len(sends(server)) - asked == 120 - before
    out = files.table("out.parquet")
    assert out["topic_error"].null_count == out["reason_error"].null_count == 60
    again = await cli.run(*command)
    assert (again.status, "finished before: 60 of 60" in again.err) == (0, True)
    other = await cli.run(*argv(files, server, "out.parquet", [TWO[0]]))
    assert (other.status, "exists already" in other.err) == (2, True)


async def test_a_stop_ends_the_step_and_begins_no_other(cli, files, serve):
    server = await serve(engine=EngineSettings(), answer_tokens=4)
    files.file("in.jsonl", texts(60))
    command = [*argv(files, server), "--concurrency", 4, "--log-format", "json"]
    stopped = await cli.start(*command)
    await until(lambda: len(sends(server)) > 10)
    stopped.send(signal.SIGTERM)
    done = await stopped.wait()
    assert done.status == 3
    assert [entry["step"] for entry in done.named("run_stopped")] == ["topic"]
    assert (await cli.run(*command)).status == 0


async def test_a_retry_that_was_broken_off_is_gone_on_with_by_the_plain_command(cli, files, serve):
    server = await serve(engine=EngineSettings(), answer_tokens=40)
    server.inject(PRESETS["context_length_400"], Match(text="Topic of row-00001"))
    files.file("in.jsonl", texts(3))
    command = argv(files, server)
    assert (await cli.run(*command)).status == 1
    server.clear()
    before = len(sends(server))
    killed = await cli.start(*command, "--retry-failed")
    await until(lambda: len(sends(server)) > before)
    await killed.kill()
    done = await cli.run(*command)
    assert done.status == 0, done.err
    assert all(line["reason"] for line in files.lines("out.jsonl"))
    assert set(sends(server)[before:]) == {"row-00001"}
