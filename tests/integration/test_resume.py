"""A run is stopped, and the same command goes on; or is refused, by name."""

import os
import shutil
import signal
import sqlite3
from collections import Counter

import pytest
from commands import until
from jobs import read, row, rows, sends

from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.faults import Hang, Match, Respond

SLOW = EngineSettings(max_sequences=8, decode_step_s=0.01)


@pytest.fixture
async def stopped(cli, job, server):
    """A job of 20 rows, killed when all but one were recorded; its server answers everything by now."""
    hung = server.inject(Hang(), Match(text="row-00013"))
    command = await cli.start(*job.write(rows(20)).argv(server))
    await until(lambda: len(job.recorded()) == 19)
    await command.kill()
    server.withdraw(hung)
    return job


async def test_a_killed_run_goes_on_and_sends_only_what_is_missing(cli, stopped, server):
    sent = len(sends(server))
    done = await cli.run(*stopped.argv(server))
    assert done.status == 0, done.err
    assert sends(server)[sent:] == ["row-00013"]
    assert stopped.ids == [request["custom_id"] for request in rows(20)]
    assert "20 of 20 rows succeeded" in done.err
    assert "this run: 1 rows" in done.err


async def test_a_finished_run_sends_nothing_again(cli, job, server):
    for options in ([], ["--keep-state"], []):
        done = await cli.run(*job.write(rows(5)).argv(server), *options)
        assert done.status == 0, done.err
    assert "finished before" in done.err
    assert len(sends(server)) == 5


@pytest.mark.parametrize(("fault", "sends_then"), [(Respond(500, "{}"), 2), (Hang(), 2)])
async def test_the_attempts_and_the_timeout_of_the_latest_command_count(cli, job, server, fault, sends_then):
    server.inject(fault, Match(text="row-00001"))
    limits = ["--request-timeout", 0.2, "--max-attempts", 1]
    assert (await cli.run(*job.write(rows(3)).argv(server), *limits)).status == 1
    assert sends(server).count("row-00001") == 1
    limits = ["--request-timeout", 0.6, "--max-attempts", sends_then]
    assert (await cli.run(*job.argv(server), *limits, "--retry-failed")).status == 1
    assert sends(server).count("row-00001") == 1 + sends_then
    if isinstance(fault, Hang):
        assert read(job.errors)[0]["provenance"]["seconds"] >= 0.6


async def test_a_kept_state_makes_a_lost_output_again_without_sending(cli, job, server):
    await cli.run(*job.write(rows(5)).argv(server), "--keep-state")
    job.output.unlink()
    done = await cli.run(*job.argv(server))
    assert done.status == 0
    assert len(job.ids) == len(sends(server)) == 5


async def test_an_output_of_something_else_is_not_overwritten(cli, job, server):
    job.write(rows(5)).output.write_text("precious\n")
    done = await cli.run(*job.argv(server))
    assert done.status == 2
    assert str(job.output) in done.err
    assert "no file of the dispatcher's" in done.err
    assert job.output.read_text() == "precious\n"
    assert sends(server) == []


async def test_a_changed_input_is_refused_and_a_touched_one_accepted(cli, stopped, server):
    content = stopped.input.read_text()
    stopped.input.write_text(content.replace("row-00013", "row-00099"))
    os.utime(stopped.input, ns=(1, 1))
    refused = await cli.run(*stopped.argv(server))
    assert refused.status == 2
    assert str(stopped.input) in refused.err
    stopped.input.write_text(content)
    os.utime(stopped.input, ns=(2, 2))
    assert (await cli.run(*stopped.argv(server))).status == 0


@pytest.mark.parametrize(
    ("options", "env", "name"),
    [
        (["--model", "fake-model"], {}, "run.model"),
        (["--model-override", "fake-model"], {}, "run.model_override"),
        ([], {"DISPATCHER_RESULTS__PROVENANCE": "false"}, "results.provenance"),
    ],
)
async def test_a_setting_that_changes_answers_is_refused_by_name(cli, stopped, server, options, env, name):
    sent = len(sends(server))
    refused = await cli.run(*stopped.argv(server), *options, env=env)
    assert refused.status == 2
    assert name in refused.err
    assert "--restart" in refused.err
    assert len(sends(server)) == sent
    assert (await cli.run(*stopped.argv(server), *options, "--restart", env=env)).status == 0


async def test_what_changes_no_answer_may_be_changed(cli, stopped, server):
    options = ["--concurrency", 2, "--max-attempts", 5, "--shard-size", 3, "--on-invalid", "skip"]
    done = await cli.run(*stopped.argv(server), *options)
    assert done.status == 0, done.err


async def test_a_second_run_on_a_live_state_directory_is_refused_by_name(cli, job, server):
    server.inject(Hang(), Match(text="row-00003"))
    first = await cli.start(*job.write(rows(5)).argv(server))
    await until(lambda: len(job.recorded()) == 4)
    second = await cli.run(*job.argv(server))
    assert second.status == 2
    assert f"process {first.pid} on {os.uname().nodename}" in second.err
    assert first.running


async def test_the_state_of_a_newer_version_is_refused(cli, stopped, server):
    sent = len(sends(server))
    with sqlite3.connect(stopped.state / "queue.sqlite") as database:
        database.execute("UPDATE alembic_version SET version_num = 'of_the_future'")
    database.close()
    done = await cli.run(*stopped.argv(server))
    assert done.status == 2
    assert "newer" in done.err
    assert str(stopped.state) in done.err
    assert len(sends(server)) == sent
    assert len(stopped.recorded()) == 19


async def test_sigterm_drains_and_the_same_command_goes_on(cli, job, serve):
    server = await serve(engine=SLOW, answer_tokens=4)
    command = await cli.start(*job.write(rows(150)).argv(server), "--log-format", "json")
    await until(lambda: len(sends(server)) > 40)
    command.send(signal.SIGTERM)
    done = await command.wait(10)
    assert done.status == 3
    (told,) = done.named("run_stopped")
    assert 0 < told["succeeded"] < 150
    assert told["left"] == 150 - told["succeeded"]
    assert server.disconnects == 0
    recorded = job.recorded()
    assert len(recorded) == told["succeeded"] == len(sends(server))
    again = await cli.run(*job.argv(server), "--concurrency", 64)
    assert again.status == 0, again.err
    assert Counter(sends(server)).most_common(1)[0][1] == 1
    assert len(job.ids) == 150


@pytest.mark.parametrize(
    "signals", [[signal.SIGINT] * 2, [signal.SIGTERM] * 2, [signal.SIGINT, signal.SIGTERM]]
)
async def test_a_second_signal_ends_at_once(cli, job, server, signals):
    server.inject(Hang(), Match(text="row-00003"))
    command = await cli.start(*job.write(rows(5)).argv(server), "--log-format", "json")
    await until(lambda: len(job.recorded()) == 4)
    command.send(signals[0])
    await until(lambda: "stopping" in command.err)
    assert command.running
    command.send(signals[1])
    done = await command.wait(5)
    assert done.status == 3
    assert done.named("run_stopped")[0]["left"] >= 1
    await until(lambda: server.disconnects == 1)


async def test_an_input_that_vanishes_while_running_loses_nothing(cli, job, serve):
    server = await serve(engine=SLOW, answer_tokens=4)
    command = await cli.start(*job.write(rows(1500)).argv(server), "--concurrency", 8)
    content = await until(lambda: job.recorded() and job.input.read_bytes())
    job.input.unlink()
    done = await command.wait(20)
    assert done.status == 3
    assert str(job.input) in done.err
    job.input.write_bytes(content)
    kept = job.recorded()
    again = await cli.start(*job.argv(server), "--concurrency", 8)
    await until(lambda: len(job.recorded()) > len(kept))
    again.send(signal.SIGTERM)
    assert (await again.wait(10)).status == 3
    assert kept < job.recorded()


async def test_an_output_directory_that_is_missing_or_closed_is_told_before_anything_is_sent(
    cli, job, server, tmp_path
):
    job.write(rows(3)).output = tmp_path / "absent" / "out.jsonl"
    missing = await cli.run(*job.argv(server))
    assert missing.status == 2
    assert str(tmp_path / "absent") in missing.err
    assert sends(server) == []
    assert not (tmp_path / "absent").exists()


async def test_a_state_directory_that_cannot_be_made_is_told(cli, job, server, tmp_path):
    (tmp_path / "file").write_text("")
    done = await cli.run(*job.write(rows(3)).argv(server), "--state-dir", tmp_path / "file" / "state")
    assert done.status == 2
    assert str(tmp_path / "file") in done.err
    assert sends(server) == []


async def test_a_torn_journal_keeps_its_whole_records(cli, stopped, server):
    (journal,) = stopped.journals()
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole[:40])
    sent = len(sends(server))
    assert (await cli.run(*stopped.argv(server))).status == 0
    assert sends(server)[sent:] == ["row-00013"]


async def test_a_state_directory_that_was_moved_goes_on(cli, stopped, server, tmp_path):
    moved = shutil.move(stopped.state, tmp_path / "moved")
    done = await cli.run(*stopped.argv(server), "--state-dir", moved)
    assert done.status == 0, done.err
    assert len(read(stopped.output)) == 20


async def test_rows_with_equal_bodies_are_rows_of_their_own(cli, job, server):
    same = row(0)
    job.write([{**same, "custom_id": f"copy-{number}"} for number in range(30)])
    assert (await cli.run(*job.argv(server))).status == 0
    assert job.ids == [f"copy-{number}" for number in range(30)]
