"""No command line may cost the user a file: what is not the run's own is neither replaced nor removed."""

import asyncio
import sys

import pytest
from jobs import lines, rows

from dispatcher.testing import Match, presets


@pytest.fixture
def notes(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    return path


async def test_a_state_directory_that_holds_other_things_loses_none_of_them(cli, job, server, tmp_path):
    state = tmp_path / "home"
    (state / "papers").mkdir(parents=True)
    (state / "papers" / "thesis.txt").write_text("years of work")
    argv = job.write(rows(3)).argv(server)
    failed = await cli.run("run", tmp_path / "typo.jsonl", *argv[2:], "--state-dir", state)
    done = await cli.run(*argv, "--state-dir", state)
    again = await cli.run(*argv, "--state-dir", state, "--restart")
    assert (failed.status, done.status, again.status) == (2, 0, 0)
    assert (state / "papers" / "thesis.txt").read_text() == "years of work"
    assert [path.name for path in state.iterdir()] == ["papers"]


async def test_a_linked_state_directory_is_emptied_and_stays(cli, job, server, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    done = await cli.run(*job.write(rows(3)).argv(server), "--state-dir", tmp_path / "link")
    assert done.status == 0
    assert list((tmp_path / "real").iterdir()) == []


@pytest.mark.parametrize("setting", ["--errors", "-o"])
async def test_the_input_is_never_written_to(cli, job, server, setting):
    job.write(rows(3))
    content = job.input.read_bytes()
    argv = [job.input if setting == "-o" and part == job.output else part for part in job.argv(server)]
    extra = ["--errors", job.input] if setting == "--errors" else []
    done = await cli.run(*argv, *extra, "--restart")
    assert done.status == 2
    assert "the input" in done.err
    assert job.input.read_bytes() == content


async def test_a_rejected_file_is_not_written_over_the_input(cli, job, server, tmp_path):
    job.input = tmp_path / "y.rejected.jsonl"
    job.output = tmp_path / "y.jsonl"
    job.write(rows(3))
    done = await cli.run(*job.argv(server), "--on-invalid", "skip")
    assert done.status == 2
    assert len(job.input.read_text().splitlines()) == 3


async def test_answers_do_not_go_into_the_state_directory(cli, job, server, tmp_path):
    argv = job.write(rows(3)).argv(server)
    done = await cli.run(*argv, "--errors", tmp_path / "s" / "e.jsonl", "--state-dir", tmp_path / "s")
    assert done.status == 2


@pytest.mark.parametrize("restart", [[], ["--restart"]], ids=["as it is", "with --restart"])
async def test_a_file_that_is_not_the_dispatchers_is_refused_by_name(cli, job, server, notes, restart):
    done = await cli.run(*job.write(rows(3)).argv(server), "--errors", notes, *restart)
    assert done.status == 2
    assert str(notes) in done.err
    assert notes.read_text() == "mine\n"


async def test_a_finished_run_puts_a_lost_error_file_back(cli, job, server):
    server.inject(presets.context_length(), Match(text="row-00001"))
    argv = job.write(rows(3)).argv(server)
    assert (await cli.run(*argv)).status == 1
    content = job.errors.read_bytes()
    job.errors.unlink()
    again = await cli.run(*argv)
    assert again.status == 1
    assert job.errors.read_bytes() == content


async def test_a_finished_run_does_not_take_another_jobs_output_for_its_own(cli, job, server, tmp_path):
    server.inject(presets.context_length(), Match(text="row-00001"))
    argv = job.write(rows(3)).argv(server)
    assert (await cli.run(*argv)).status == 1
    job.input.write_text(lines(rows(3, text="other")))
    other = [tmp_path / "other.jsonl" if part == job.output else part for part in job.argv(server)]
    assert (await cli.run(*other)).status == 1
    job.input.write_text(lines(rows(3)))
    mixed = await cli.run(*other, "--state-dir", job.state)
    assert mixed.status == 2
    assert "not the output of the finished run" in mixed.err


async def test_after_a_success_other_prompts_or_models_under_the_same_ids_are_refused(cli, job, server):
    argv = job.write(rows(3)).argv(server)
    assert (await cli.run(*argv)).status == 0
    assert (await cli.run(*argv)).status == 0
    for changed in (
        await cli.run(*argv, "--model-override", "another"),
        await cli.run(*job.write(rows(3, text="other")).argv(server)),
    ):
        assert changed.status == 2
        assert "does not answer" in changed.err


async def test_closed_standard_streams_do_no_harm(job, server):
    command = [sys.executable, "-m", "dispatcher", *map(str, job.write(rows(3)).argv(server))]
    shell = " ".join(f"'{part}'" for part in command)
    process = await asyncio.create_subprocess_shell(f"exec {shell} <&- >&- 2>&-")
    async with asyncio.timeout(30):
        assert await process.wait() == 0
    assert len(job.output.read_text().splitlines()) == 3
