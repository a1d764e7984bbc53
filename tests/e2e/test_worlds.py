"""Bad worlds that take their time: nobody answers, the disk is full, the list of servers changes."""

import asyncio
import itertools
import os
import ssl
import subprocess
import sys
from contextlib import contextmanager

import pytest
from commands import Commands, until
from gateway import certificate, proxy
from jobs import row, rows, sends
from name_server import NameServer

from dispatcher.testing.engine import EngineSettings

SLOW = EngineSettings(max_sequences=8, decode_step_s=0.01)


def without(reason):
    """Skip, or fail where nothing may be absent."""
    if os.environ.get("DISPATCHER_REQUIRE_SERVICES") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def mounted(path, *options):
    """A tmpfs, for as long as the context is open."""
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", path]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        without(f"cannot mount a tmpfs: {done.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def _enlarge(path):
    subprocess.run(["mount", "-o", "remount,size=4m", path], check=True)


async def test_waiting_for_servers_and_progress_are_said_every_ten_seconds(cli, job):
    command = await cli.start(*job.write(rows(2)).argv("http://127.0.0.1:9"), "--log-format", "json")
    await until(lambda: command.err.count('"waiting_for_servers"') >= 3, timeout_s=40)
    await command.kill()
    done = await command.wait()
    waits = [entry["seconds"] for entry in done.named("waiting_for_servers")]
    assert waits[0] < 5
    assert all(9 <= later - earlier <= 14 for earlier, later in itertools.pairwise(waits))
    assert {"rows", "in_flight", "left", "rows_per_s", "eta_s", "servers"} <= done.named("progress")[0].keys()


async def test_a_changed_servers_file_brings_servers_in_and_lets_others_drain(cli, job, serve, tmp_path):
    first, second = [await serve(engine=SLOW, answer_tokens=30) for _ in range(2)]
    listed = tmp_path / "servers.txt"
    listed.write_text(f"{first.url}\n")
    options = ["--servers-file", listed, "--concurrency", 8, "--log-format", "json"]
    command = await cli.start("run", job.write(rows(600)).input, "-o", job.output, *options)
    await until(lambda: len(sends(first)) > 16)
    listed.write_text(f"{second.url}\n")
    await until(lambda: sends(second), timeout_s=30)
    await until(lambda: first.in_flight == 0, timeout_s=30)
    last = len(sends(first))
    done = await command.wait(60)
    assert done.status == 0, done.err
    assert len(sends(first)) == last
    assert first.disconnects == 0
    assert len(sends(first, second)) == 600
    assert done.named("servers_file_changed")


async def test_a_server_with_the_model_that_comes_later_takes_the_waiting_rows(cli, job, serve, tmp_path):
    first = await serve()
    listed = tmp_path / "servers.txt"
    listed.write_text(f"{first.url}\n")
    job.write([*rows(5), row(5, model="late")])
    options = ["--servers-file", listed, "--log-format", "json"]
    command = await cli.start("run", job.input, "-o", job.output, *options)
    await until(lambda: len(job.recorded()) == 5)
    late = await serve(models=("late",))
    listed.write_text(f"{first.url}\n{late.url}\n")
    done = await command.wait(40)
    assert done.status == 0, done.err
    assert sends(late) == ["row-00005"]


async def test_a_full_disk_pauses_the_job_until_there_is_space(cli, job, serve, tmp_path):
    server = await serve(engine=SLOW, answer_tokens=4)
    with mounted(tmp_path / "small", "size=4m") as small:
        job.state = small / "state"
        job.write(rows(1500))
        options = ["--state-dir", job.state, "--concurrency", 8, "--log-format", "json"]
        command = await cli.start(*job.argv(server), *options)
        await until(lambda: len(job.recorded()) > 20)
        _fill(small / "ballast")
        await until(lambda: "No space left" in command.err, timeout_s=30)
        await until(lambda: server.in_flight == 0)
        paused = len(sends(server))
        recorded = len(job.recorded())
        await until(lambda: command.err.count('"progress"') >= 2, timeout_s=40)
        assert len(sends(server)) == paused < 1500
        (small / "ballast").unlink()
        done = await command.wait(60)
        assert done.status == 0, done.err
    assert recorded <= paused
    assert len(sends(server)) == 1500
    assert len(job.ids) == 1500
    assert (await cli.run("verify", job.input, job.output)).status == 0


def _fill(path):
    with path.open("wb", buffering=0) as ballast, pytest.raises(OSError, match="No space"):
        _write_for_ever(ballast)


def _write_for_ever(file):
    for _ in range(10_000):
        file.write(b"x" * 4096)


async def test_an_output_on_a_full_disk_loses_nothing(cli, job, server, tmp_path):
    with mounted(tmp_path / "small", "size=64k") as small:
        job.output = small / "out.jsonl"
        options = ["--state-dir", tmp_path / "state"]
        full = await cli.run(*job.write(rows(300)).argv(server), *options)
        assert full.status == 3, full.err
        assert str(job.output) in full.err
        assert "No space left" in full.err
        assert not job.output.exists()
        sent = len(sends(server))
        _enlarge(small)
        done = await cli.run(*job.argv(server), *options)
        assert done.status == 0, done.err
        assert len(sends(server)) == sent == 300
        assert len(job.ids) == 300


async def test_a_read_only_output_directory_is_told_before_anything_is_sent(cli, job, server, tmp_path):
    with mounted(tmp_path / "sealed", "ro") as sealed:
        job.output = sealed / "out.jsonl"
        done = await cli.run(*job.write(rows(3)).argv(server), "--state-dir", tmp_path / "state")
        assert done.status == 2
        assert str(sealed) in done.err
    assert sends(server) == []


async def test_tls_is_verified_against_the_certificates_of_the_environment(job, server, tmp_path):
    """In interpreters of their own: these certificates are read when the program starts."""
    cert, key = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    job.write(rows(3))
    async with Commands(tmp_path) as cli, proxy(server, context=context) as url:
        distrusted = await cli.run(*job.argv(url), "--wait-for-servers", 3)
        trusted = await cli.run(*job.argv(url), env={"SSL_CERT_FILE": str(cert)})
    assert distrusted.status == 3
    assert "certificate" in distrusted.err.lower()
    assert trusted.status == 0, trusted.err
    assert len(sends(server)) == 3


async def test_a_server_found_by_its_name_is_held_to_a_certificate_for_the_name(job, server, tmp_path):
    cert, key = certificate(tmp_path, "DNS:localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    job.write(rows(3))
    async with (
        Commands(tmp_path, env={"SSL_CERT_FILE": str(cert)}) as cli,
        proxy(server, context=context) as url,
    ):
        by_address = await cli.run(*job.argv(url), "--wait-for-servers", 3)
        name = url.replace("127.0.0.1", "localhost")
        by_name = await cli.run(*job.argv(), "--servers-dns", name)
    assert by_address.status == 3
    assert "certificate" in by_address.err.lower()
    assert by_name.status == 0, by_name.err
    assert f"  {url}" in by_name.err
    assert len(sends(server)) == 3


RESOLV_CONF = """
mount --bind "$0" /etc/resolv.conf || exit 77
exec "$@"
"""


async def test_names_are_found_through_the_systems_own_resolver_and_its_search_domains(job, serve, tmp_path):
    """A name server on port 53, and a resolv.conf that names it in a mount namespace of the command's own."""
    first = await serve(engine=SLOW, answer_tokens=8)
    second = await serve("127.0.0.2", first.port, engine=SLOW, answer_tokens=8)
    third = await serve(engine=SLOW, answer_tokens=8)
    conf = tmp_path / "resolv.conf"
    conf.write_text("nameserver 127.0.0.9\nsearch fleet.test\n")
    argv = [*job.write(rows(600)).argv(), "--servers-dns", f"http://vllm:{first.port}", "--concurrency", "4"]
    argv += ["--servers-dns", "srv+http://_http._tcp.vllm", "--log-format", "json"]
    command = ["unshare", "-m", "sh", "-c", RESOLV_CONF, conf, sys.executable, "-m", "dispatcher", *argv]
    async with NameServer("127.0.0.9", 53) as names:
        names.set("vllm.fleet.test", "A", "127.0.0.1")
        process = await asyncio.create_subprocess_exec(*map(str, command), stderr=subprocess.PIPE)
        try:
            log = asyncio.create_task(process.stderr.read())
            await until(lambda: sends(first) or process.returncode is not None)
            if process.returncode == 77:
                without("cannot mount over /etc/resolv.conf")
            names.set("vllm.fleet.test", "A", "127.0.0.1", "127.0.0.2")
            names.set("_http._tcp.vllm.fleet.test", "SRV", f"0 0 {third.port} 127.0.0.1.")
            await until(lambda: sends(second) and sends(third))
            async with asyncio.timeout(30):
                assert await process.wait() == 0, await log
        finally:
            if process.returncode is None:
                process.kill()
            await log
    assert len(job.ids) == len(sends(first, second, third)) == 600
