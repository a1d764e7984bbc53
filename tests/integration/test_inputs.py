"""What `run` reads: files, archives, pipes, and the odd things in them."""

import gzip
import json
import os
import signal

import pytest
import zstandard
from commands import until
from jobs import lines, read, row, rows, sends

from dispatcher.testing.faults import Hang, Match


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstandard.ZstdCompressor().compress)]
)
async def test_an_archive_is_read(cli, job, server, tmp_path, suffix, pack):
    packed = tmp_path / f"in.jsonl{suffix}"
    packed.write_bytes(pack(lines(rows(9)).encode()))
    done = await cli.run(*job.argv(server, input=packed))
    assert done.status == 0, done.err
    assert len(job.ids) == 9
    assert (await cli.run("verify", packed, job.output)).status == 0


async def test_a_damaged_archive_is_refused_and_nothing_is_sent(cli, job, server, tmp_path):
    packed = tmp_path / "in.jsonl.gz"
    packed.write_bytes(gzip.compress(lines(rows(9)).encode())[:-9])
    done = await cli.run(*job.argv(server, input=packed))
    assert done.status == 2
    assert str(packed) in done.err
    assert sends(server) == []


async def test_standard_input_is_read(cli, job, server):
    job.write(rows(9))
    done = await cli.run(*job.argv(server, input="-"), stdin=job.input)
    assert done.status == 0, done.err
    assert len(job.ids) == 9


@pytest.mark.parametrize("given", ["again", "/dev/null"])
async def test_a_stopped_run_of_a_pipe_goes_on_with_the_pipe_or_without(cli, job, server, given):
    """Slurm gives a batch script /dev/null: the kept copy is the input then."""
    hung = server.inject(Hang(), Match(text="row-00007"))
    job.write(rows(9))
    first = await cli.start(*job.argv(server, input="-"), stdin=job.input)
    await until(lambda: len(job.recorded()) == 8)
    await first.kill()
    server.withdraw(hung)
    sent = len(sends(server))
    done = await cli.run(*job.argv(server, input="-"), stdin=job.input if given == "again" else given)
    assert done.status == 0, done.err
    assert len(job.ids) == 9
    assert sends(server)[sent:] == ["row-00007"]


async def test_another_pipe_is_refused(cli, job, server, tmp_path):
    server.inject(Hang(), Match(text="row-00007"))
    first = await cli.start(*job.argv(server, input="-"), stdin=job.write(rows(9)).input)
    await until(lambda: len(job.recorded()) == 8)
    await first.kill()
    (tmp_path / "other").write_text(lines(rows(10)))
    done = await cli.run(*job.argv(server, input="-"), stdin=tmp_path / "other")
    assert done.status == 2
    assert "not the input" in done.err


async def test_no_standard_input_and_no_earlier_run_is_told(cli, job, server):
    done = await cli.run(*job.argv(server, input="-"))
    assert done.status == 2
    assert "standard input is empty" in done.err
    assert not job.state.exists()


async def test_marks_of_other_systems_are_accepted(cli, job, server):
    """BOM, CRLF, blank lines, Unicode's other line ends, NUL, and no newline at the end."""
    odd = [row(number, text=text) for number, text in enumerate(("\u2028 \u2029 \x85", "\x00", "plain"))]
    encoded = [json.dumps(request, ensure_ascii=False) for request in odd]
    job.input.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(encoded).encode())
    done = await cli.run(*job.argv(server))
    assert done.status == 0, done.err
    assert job.ids == [request["custom_id"] for request in odd]
    assert (await cli.run("verify", job.input, job.output)).status == 0


async def test_a_long_line_is_answered(cli, job, serve):
    server = await serve(max_model_len=8_000_000)
    done = await cli.run(*job.write([row(0, text="x" * 5_000_000), row(1)]).argv(server))
    assert done.status == 0, done.err
    assert len(job.ids) == 2


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
async def test_an_input_that_is_no_file_is_named(cli, job, server, name):
    done = await cli.run(*job.argv(server, input=name))
    assert done.status == 2
    assert name in done.err
    assert not job.state.exists()


async def test_a_file_without_rows_has_an_output_without_rows(cli, job, server):
    job.input.write_text("\n\n")
    done = await cli.run(*job.argv(server))
    assert (done.status, job.ids, sends(server)) == (0, [], [])


async def test_a_terminated_read_of_a_pipe_that_does_not_end_leaves_no_job_behind(cli, job, server, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    keep_open = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        command = await cli.start(*job.argv(server, input="-"), stdin=tmp_path / "pipe")
        os.write(keep_open, lines(rows(3)).encode())
        await until(job.state.exists)
        command.send(signal.SIGTERM)
        await until(lambda: "stopping" in command.err)
        command.send(signal.SIGTERM)
        done = await command.wait(10)
    finally:
        os.close(keep_open)
    assert done.status == 3
    finished = await cli.run(*job.argv(server, input="-"), stdin=job.write(rows(3)).input)
    assert finished.status == 0, finished.err
    assert len(read(job.output)) == 3
