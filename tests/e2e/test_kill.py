"""Kill -9, at random and at chosen moments: nothing recorded is lost, and nothing recorded is sent again.

What a kill may cost: the rows in flight, and those answered in the last moment, for an outcome is written
about 10 ms after it came. They are sent again. Everything in the journals when the process is dead is kept.
"""

import asyncio
import contextlib
import time
from collections import Counter
from random import Random

import pytest
from commands import until
from jobs import Ledger, read, row, rows, sends

from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.faults import Match
from dispatcher.testing.presets import PRESETS

pytestmark = pytest.mark.timeout(400)
KILLS = 30
IN_FLIGHT = 8
"""Requests at each server: what a kill costs, and the rows answered in the moment before it."""
ANSWERED_LAST = 8
DECODE_STEPS_S = (0.01, 0.02, 0.04, 0.08)


class Kills:
    """Kills runs of one command, and keeps account of what was recorded and what was sent after it."""

    def __init__(self, cli, job, servers, *options):
        self._cli, self._job = cli, job
        self._argv = [*job.argv(*servers), *options]
        self._ledger = Ledger(servers, job.recorded)

    async def kill(self, when):
        """Start the command, and kill it when `when` returns."""
        command = await self._cli.start(*self._argv)
        await when(command)
        assert command.running, command.err
        await command.kill()
        self._ledger.settle()

    async def finish(self, status=0):
        """Run the command to its end, and prove the outcome."""
        done = await self._cli.run(*self._argv, timeout_s=240)
        self._ledger.settle()
        assert done.status == status, done.err
        files = [self._job.output, self._job.errors] if self._job.errors.exists() else [self._job.output]
        proven = await self._cli.run("verify", self._job.input, *files)
        assert proven.status == 0, proven.out
        return done


def after(seconds):
    async def when(_command):
        await asyncio.sleep(seconds)

    return when


def as_soon_as(condition):
    """Without pause between the looks: the moments that are waited for are short."""

    async def when(command):
        deadline = time.monotonic() + 60
        while not condition() and command.running and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0)

    return when


def then(*moments):
    async def when(command):
        for moment in moments:
            await moment(command)

    return when


def sending(servers):
    """When the first row of this run has been sent."""
    before = len(sends(*servers))
    return as_soon_as(lambda: len(sends(*servers)) > before)


def reading(job):
    """When the run has begun to read its input, for which it makes a folder."""
    since = time.time_ns()

    def made():
        with contextlib.suppress(FileNotFoundError):
            return (job.state / "work").stat().st_ctime_ns > since
        return False

    return as_soon_as(made)


async def test_thirty_random_kills_of_one_job_lose_nothing_and_repeat_nothing(cli, job, serve):
    seed = time.time_ns() % 100_000
    random = Random(seed)
    print(f"seed {seed}")  # noqa: T201  # to run a failure again
    servers = [
        await serve(engine=EngineSettings(max_sequences=8, decode_step_s=step), answer_tokens=8)
        for step in DECODE_STEPS_S
    ]
    for server in servers:
        server.inject(PRESETS["context_length_400"], Match(text="bad"))
    job.write([row(number, text="bad" if number % 50 == 7 else "") for number in range(5000)])
    kills = Kills(cli, job, servers, "--concurrency", IN_FLIGHT)
    for number in range(KILLS):
        moment = after(random.uniform(0.0, 1.5))
        await kills.kill(moment if number % 3 == 0 else then(sending(servers), moment))
    recorded = len(job.recorded())
    await kills.finish(status=1)
    repeated = sum(count - 1 for count in Counter(sends(*servers)).values())
    print(f"{recorded} rows recorded by killed runs, {repeated} sent again")  # noqa: T201
    assert recorded > 1000, "the kills came before anything was recorded: the test has tested nothing"
    assert repeated <= KILLS * (len(servers) * IN_FLIGHT + ANSWERED_LAST)


async def test_kills_right_after_the_start_leave_a_job_that_goes_on(cli, job, server):
    kills = Kills(cli, job.write(rows(300)), [server])
    for step in range(12):
        await kills.kill(after(0.02 * step))
    await kills.finish()
    assert job.ids == [request["custom_id"] for request in rows(300)]


async def test_kills_while_the_input_is_read_leave_nothing_half_read(cli, job, server):
    requests = rows(15_000)
    kills = Kills(cli, job.write(requests), [server], "--shard-size", 500)
    half_read = 0
    for step in range(10):
        await kills.kill(then(reading(job), after(0.01 * step)))
        if not (job.state / "work").exists():
            break  # this one had read it all, and the next would not read it again
        half_read += 1
    assert half_read > 0, "no kill met the reading"
    await kills.finish()
    assert job.ids == [request["custom_id"] for request in requests]


async def test_kills_while_the_output_is_written_leave_whole_files_or_none(cli, job, server, tmp_path):
    """Aimed at the writing aside, at the moment between the two renames, and at the time right after them."""
    server.inject(PRESETS["context_length_400"], Match(text="bad"))
    requests = [row(number, text="bad" if number % 4 == 0 else "") for number in range(4000)]
    kills = Kills(cli, job.write(requests), [server])
    partial = tmp_path / "out.jsonl.partial"
    renamed_one = 0
    for condition in (
        partial.exists,
        partial.exists,
        job.errors.exists,
        job.errors.exists,
        job.errors.exists,
    ):
        await kills.kill(as_soon_as(lambda found=condition: found() or job.output.exists()))
        if job.output.exists():
            assert len(read(job.output)) + len(read(job.errors)) == len(requests)
            job.output.unlink()
        renamed_one += job.errors.exists()
        job.errors.unlink(missing_ok=True)
    assert partial.exists() or renamed_one, "no kill met the writing"
    sent = len(sends(server))
    await kills.finish(status=1)
    assert len(sends(server)) == sent
    assert not partial.exists()


async def test_a_kill_while_the_state_is_removed_leaves_a_finished_job(cli, job, server):
    kills = Kills(cli, job.write(rows(1000)), [server], "--shard-size", 4)
    await kills.kill(as_soon_as(job.output.exists))
    sent = len(sends(server))
    done = await kills.finish()
    assert "finished" in done.err
    assert len(sends(server)) == sent


async def test_kills_while_failed_rows_are_sent_again_lose_no_success(cli, job, serve):
    server = await serve(engine=EngineSettings(max_sequences=8, decode_step_s=0.005), answer_tokens=4)
    fault = server.inject(PRESETS["context_length_400"], Match(text="bad"))
    requests = [row(number, text="bad" if number % 2 else "") for number in range(800)]
    assert (await cli.run(*job.write(requests).argv(server), "--concurrency", 64)).status == 1
    server.withdraw(fault)
    first = len(server.requests)
    for delay_s in (0.3, 0.5, 0.7):
        command = await cli.start(*job.argv(server), "--retry-failed")
        await asyncio.sleep(delay_s)
        await command.kill()
    done = await cli.run(*job.argv(server), "--retry-failed")
    assert done.status == 0, done.err
    assert len(job.ids) == 800
    assert {int(marker[4:]) % 2 for marker in sends(server)[first:]} == {1}


async def test_a_killed_run_leaves_its_lock_to_nobody(cli, job, server):
    kills = Kills(cli, job.write(rows(50)), [server])
    await kills.kill(as_soon_as(job.recorded))
    await until(job.state.exists)
    await kills.finish()
