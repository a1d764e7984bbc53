"""Several questions in a row, stopped, killed and retried; and other long stories of tables."""

import json
import signal

import pytest
import yaml
from commands import until
from jobs import recorded_in, sends
from tables import TWO_STEPS as TWO
from tables import in_steps as argv
from tables import steps_files, texts

from dispatcher import ConfigError, Dispatcher
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


async def test_a_step_may_have_servers_and_a_model_of_its_own(cli, files, serve):
    first, second = await serve(), await serve(models=("big",))
    files.file("in.jsonl", texts(4))
    steps = [TWO[0], {**TWO[1], "servers": [second.url], "model": "big"}]
    files.file("dispatcher.yaml", yaml.safe_dump({"servers": [first.url], "annotate": {"steps": steps}}))
    config = files.directory / "dispatcher.yaml"
    done = await cli.run(*files.argv("in.jsonl", "out.jsonl", prompt=False), "--config", config)
    assert done.status == 0, done.err
    assert len(sends(first)) == len(sends(second)) == 4
    assert {line["reason_server"] for line in files.lines("out.jsonl")} == {second.url}


async def test_another_prompt_of_a_step_that_has_begun_is_refused(cli, files, server):
    server.inject(PRESETS["context_length_400"], Match(text="row-00000"))
    files.file("in.jsonl", texts(2))
    command = argv(files, server)
    assert (await cli.run(*command)).status == 1
    files.file("reason.md", "Another {{ text }} {{ topic }}")
    other = await cli.run(*command)
    assert other.status == 2
    assert "steps/reason" in other.err
    assert "annotate.prompt" in other.err
    single = await cli.run(*files.argv("in.jsonl", "out.jsonl", server))
    assert (single.status, "a run of steps" in single.err) == (2, True)
    assert (await cli.run(*command, "--restart")).status == 1


async def test_steps_can_be_asked_for_from_python(files, server):
    source = files.file("in.jsonl", texts(3))
    steps = [{**step, "prompt": str(files.directory / step["prompt"])} for step in TWO]
    async with Dispatcher(servers=[server.url]) as d:
        summary = await d.annotate_table(source, files.directory / "out.jsonl", steps=steps, temperature=0)
        with pytest.raises(ConfigError, match="annotate_table"):
            _ = [row async for row in d.annotate(texts(1), prompt="a", steps=steps)]
    assert summary.exit_code == 0
    assert [name for name, _ in summary.steps] == ["topic", "reason"]
    assert all(line["reason"] for line in files.lines("out.jsonl"))


async def test_a_preview_shows_every_step_where_there_are_servers(cli, files, server):
    files.file("in.jsonl", texts(3))
    argv(files, server)
    asked = files.argv("in.jsonl", "out.jsonl", prompt=False)
    alone = await cli.run(*asked, "--config", files.directory / "dispatcher.yaml", "--preview", 1)
    assert alone.out.splitlines()[1:3] == ["-- step topic", "[user] Topic of row-00000 a review?"]
    assert "-- step reason" not in alone.out
    shown = await cli.run(*argv(files, server), "--preview", 2)
    assert shown.status == 0, shown.err
    assert shown.out.count("-- step topic") == shown.out.count("-- step reason") == 2
    assert "[user] Why is row-00000 a review about" in shown.out
    assert not (files.directory / "out.jsonl").exists()


async def test_a_table_of_all_steps_that_is_finished_is_left_as_it_is(cli, files, server):
    files.file("in.jsonl", texts(30))
    for status in ("finished", "finished before"):
        done = await cli.run(*argv(files, server))
        assert done.status == 0, done.err
        assert f"{status}: 30 of 30 rows succeeded" in done.err
    assert len(sends(server)) == 60
    quiet = await cli.run(*argv(files, server), "--log-format", "json")
    assert quiet.named("run_finished")[0]["succeeded"] == 30


async def test_what_was_piped_need_not_be_piped_again(cli, files, server):
    server.inject(PRESETS["context_length_400"], Match(text="row-00002"))
    source = files.file("in.jsonl", texts(5))
    command = ["annotate", "-", "-o", "-", "--prompt", files.prompt, "--server", server.url]
    assert (await cli.run(*command, stdin=source)).status == 1
    server.clear()
    again = await cli.run(*command, "--retry-failed")
    assert again.status == 0, again.err
    assert all(json.loads(line)["answer"] for line in again.out.splitlines())
    assert sends(server).count("row-00001") == 1
    assert not list(files.directory.glob("*.state"))
