"""`run --workers N`: processes that share one job, and die, are stopped and are replaced."""

import asyncio
import contextlib
import os
import signal
import sqlite3
from pathlib import Path

import aiohttp
import failure_stage
import pyarrow as pa
import pytest
from commands import until
from jobs import Ledger, row, rows, sends
from prometheus_client.parser import text_string_to_metric_families
from tables import Annotation, texts

from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.faults import Die, Ending, Hang, Match
from dispatcher.testing.presets import PRESETS
from dispatcher.testing.settings import FakeServerSettings

pytestmark = pytest.mark.timeout(180)
STEADY = EngineSettings(max_sequences=16, decode_step_s=0.02)
WORKERS = ("--workers", 2)


def workers_of(pid):
    """The processes that this one has started, by the kernel's word."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in children.split()]
    return []


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def at_work(command, condition):
    """Wait until the condition holds, or the command has ended."""
    await until(lambda: not command.running or condition())
    assert command.running, command.err


async def both_at_work(command, job, recorded=50):
    await at_work(command, lambda: len(workers_of(command.pid)) == 2)
    await at_work(command, lambda: len(holders(job)) >= 2 and len(job.recorded()) >= recorded)
    return workers_of(command.pid)


def holders(job):
    """How many nodes hold or have settled shards."""
    path = job.state / "queue.sqlite"
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as database:
        return {node for (node,) in database.execute("select distinct node from shards") if node}
    return set()


def settled_by_node(job):
    """How many rows each node has settled."""
    asked = "select sum(requests) from shards where settled_at is not null group by node"
    with contextlib.closing(sqlite3.connect(job.state / "queue.sqlite")) as database:
        return [requests for (requests,) in database.execute(asked)]


async def prove(cli, job, number):
    files = [job.output, job.errors] if job.errors.exists() else [job.output]
    proven = await cli.run("verify", job.input, *files)
    assert proven.status == 0, proven.out
    assert f"{number:,}" in proven.out


@pytest.fixture
async def servers(serve):
    return [await serve(engine=STEADY, answer_tokens=8) for _ in range(2)]


@pytest.fixture(autouse=True)
def uncopied(cli):
    """Sends are counted here: no row is to be copied at the end, when servers idle."""
    cli._env["DISPATCHER_DISPATCH__HEDGE"] = "false"


async def test_two_workers_answer_every_row_once_and_are_shown_as_one_run(cli, job, servers):
    servers[0].inject(PRESETS["context_length_400"], Match(text="bad"))
    requests = [row(number, text="bad" if number % 100 == 7 else "") for number in range(1000)]
    done = await cli.run(*job.write(requests).argv(*servers), *WORKERS, "--log-format", "json", timeout_s=90)
    servers[1].inject(PRESETS["context_length_400"], Match(text="bad"))
    [finished] = done.named("run_finished")
    assert finished["rows"] == 1000
    assert finished["succeeded"] + finished["failed"] == 1000
    assert sum(finished["by_server"].values()) == finished["succeeded"]
    assert {entry["worker"] for entry in done.named("server_active")} == {1, 2}
    await prove(cli, job, 1000)


async def test_a_killed_worker_costs_what_it_had_in_flight_and_is_replaced(cli, job, servers):
    ledger = Ledger(servers, job.recorded)
    argv = [*job.write(rows(2000)).argv(*servers), *WORKERS, "--concurrency", 8, "--log-format", "json"]
    command = await cli.start(*argv)
    for _ in range(3):
        first, _second = await both_at_work(command, job, len(job.recorded()) + 100)
        os.kill(first, signal.SIGKILL)
        await until(lambda first=first: len(set(workers_of(command.pid)) - {first}) == 2)
    done = await command.wait(120)
    ledger.settle()
    assert done.status == 0, done.err
    assert len(done.named("worker_died")) == 3
    assert "SIGKILL" in done.named("worker_died")[0]["reason"]
    [finished] = done.named("run_finished")
    assert finished["succeeded"] == 2000
    assert len(sends(*servers)) - 2000 <= 3 * (8 + 8 + 8), (
        "a kill costs the rows in flight, and the last moment's"
    )
    await prove(cli, job, 2000)


async def test_a_killed_run_takes_its_workers_along_and_the_same_command_goes_on_at_once(cli, job, servers):
    argv = [*job.write(rows(1500)).argv(*servers), *WORKERS, "--concurrency", 8]
    ledger = Ledger(servers, job.recorded)
    for _ in range(3):
        command = await cli.start(*argv)
        children = await both_at_work(command, job, len(job.recorded()) + 50)
        await command.kill()
        again = await cli.start(*argv)  # at once: it waits for the workers' end by itself
        await at_work(again, lambda again=again: len(workers_of(again.pid)) == 2)
        assert not any(map(alive, children))
        await again.kill()
        ledger.settle()
    done = await cli.run(*argv, timeout_s=120)
    assert done.status == 0, done.err
    await prove(cli, job, 1500)


async def test_a_stopped_run_that_is_killed_leaves_no_frozen_worker_behind(cli, job, servers):
    argv = [*job.write(rows(600)).argv(*servers), *WORKERS, "--concurrency", 8]
    command = await cli.start(*argv)
    children = await both_at_work(command, job)
    os.kill(children[0], signal.SIGSTOP)
    await command.kill()
    await until(lambda: not any(map(alive, children)), 5)
    assert (await cli.run(*argv, timeout_s=90)).status == 0
    await prove(cli, job, 600)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_all_of_them_drains_in_order(cli, job, servers, number):
    """As a terminal or a scheduler sends it."""
    argv = [*job.write(rows(1200)).argv(*servers), *WORKERS, "--concurrency", 8, "--log-format", "json"]
    command = await cli.start(*argv)
    children = await both_at_work(command, job)
    for pid in (*children, command.pid):
        os.kill(pid, number)
    stopped = await command.wait(60)
    assert stopped.status == 3
    assert not any(map(alive, children))
    assert not stopped.named("worker_died")
    [summary] = stopped.named("run_stopped")
    recorded = len(job.recorded())
    assert summary["succeeded"] == recorded
    assert len(sends(*servers)) == recorded, "what was in flight has ended and is recorded"
    assert (await cli.run(*argv, timeout_s=90)).status == 0
    assert len(sends(*servers)) == 1200
    await prove(cli, job, 1200)


async def test_a_second_signal_ends_all_at_once(cli, job, server):
    server.inject(Hang(), Match(text="row-00013"))
    command = await cli.start(*job.write(rows(600)).argv(server), *WORKERS, "--concurrency", 64)
    await until(lambda: len(job.recorded()) == 599)
    children = workers_of(command.pid)
    command.send(signal.SIGINT)
    await asyncio.sleep(1.0)
    assert command.running
    command.send(signal.SIGINT)
    stopped = await command.wait(10)
    assert stopped.status == 3
    assert "599 of 600" in stopped.err
    assert not any(map(alive, children))


async def test_a_worker_that_dies_again_and_again_ends_the_run_as_resumable(cli, job, servers):
    argv = job.write(rows(800)).argv(*servers)
    command = await cli.start(*argv, *WORKERS, "--concurrency", 8, "--log-format", "json")
    while command.running:
        for pid in workers_of(command.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.05)
    done = await command.wait()
    assert done.status == 3
    assert "died again and again" in done.err
    assert "--workers 1" in done.err
    assert (await cli.run(*argv, timeout_s=90)).status == 0
    await prove(cli, job, 800)


async def test_a_worker_with_nothing_left_gets_what_the_other_has_not_begun(cli, job, servers):
    """All rows fit into one worker's hand: whoever comes first would send them all."""
    argv = [*job.write(rows(400)).argv(*servers), *WORKERS, "--concurrency", 8]
    done = await cli.run(*argv, "--keep-state", "--log-format", "json", timeout_s=90)
    assert done.status == 0, done.err
    assert done.named("shards_given_back")
    by_node = settled_by_node(job)
    assert len(by_node) == 2
    assert min(by_node) >= 100, by_node
    await prove(cli, job, 400)


async def test_a_table_is_annotated_by_workers_and_one_of_them_may_die(cli, serve, tmp_path):
    files = Annotation(tmp_path)
    files.file("in.parquet", pa.Table.from_pylist(texts(1200)))
    server = await serve(engine=STEADY, answer_tokens=4)
    argv = [*files.argv("in.parquet", "out.parquet", server), *WORKERS, "--concurrency", 16]
    command = await cli.start(*argv)
    await until(lambda: len(workers_of(command.pid)) == 2)
    await until(lambda: len(sends(server)) > 100)
    table, away = tmp_path / "in.parquet", tmp_path / "away"
    table.rename(away)  # all of it has been read: whoever takes the dead one's place does not look for it
    os.kill(workers_of(command.pid)[0], signal.SIGKILL)
    done = await command.wait(90)
    assert done.status == 0, done.err
    away.rename(table)
    proven = await cli.run(*argv, "--verify")
    assert proven.status == 0, proven.out


async def test_rows_from_a_pipe_are_read_once_and_by_the_parent(cli, job, server, tmp_path):
    job.write(rows(600))
    argv = ["run", "-", "-o", job.output, "--server", server.url, *WORKERS]
    done = await cli.run(*argv, stdin=job.input, timeout_s=60)
    assert done.status == 0, done.err
    await prove(cli, job, 600)


async def test_two_poison_rows_are_found_by_workers_that_try_suspects_in_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(failure_stage, "WITHIN_S", 120.0)
    stage = failure_stage.Stage(tmp_path)
    death = Die(seconds=1.0, ending=Ending.RESET, linger_s=0)
    settings = FakeServerSettings(engine=EngineSettings(max_sequences=16, decode_step_s=0.01))
    async with failure_stage.fleet(3, settings) as servers:
        for server in servers:
            for number in (20, 390):
                server.inject(death, Match(text=f"row-{number} "))
        requests = failure_stage.rows(400)
        run = {"workers": 2}
        result = await stage.run(servers, requests, pool={"limit": 8}, queue={"shard_size": 64}, run=run)
        assert {row: result.code(row) for row in result.errors} == {"row-20": "poison", "row-390": "poison"}
        assert len(result.successes) == 398
        deaths = failure_stage.sends(*servers)
        assert max(deaths["row-20"], deaths["row-390"]) <= 4


async def metrics_of(port):
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as response,
    ):
        text = await response.text()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def metrics_where(port, limits):
    """The metrics, once the servers' permits are these: the ramps have ended."""
    async with asyncio.timeout(20):
        while True:
            metrics = await metrics_of(port)
            if [value for key, value in metrics.items() if key[0] == "dispatcher_server_limit"] == limits:
                return metrics


def counters(metrics):
    return {
        key: value
        for key, value in metrics.items()
        if key[0].endswith(("_total", "_count", "_sum", "_bucket"))
    }


async def test_one_port_has_the_metrics_of_all_and_no_counter_goes_back(cli, job, servers, unused_tcp_port):
    argv = job.write(rows(3000)).argv(*servers)
    command = await cli.start(*argv, *WORKERS, "--concurrency", 9, "--metrics-port", unused_tcp_port)
    children = await both_at_work(command, job)
    before = await metrics_where(unused_tcp_port, limits=[9, 9])
    for server in servers:
        assert 0 < before["dispatcher_server_in_flight", ("server", server.url)] <= 9
        assert before["dispatcher_server_state", ("server", server.url), ("state", "active")] == 1
    assert before["dispatcher_outcomes_total", ("result", "success")] > 20, "50 are written, and most synced"
    assert sum(value for key, value in before.items() if key[0] == "dispatcher_queue_requests") == 3000
    os.kill(children[1], signal.SIGKILL)
    seen = before
    for _ in range(20):
        await asyncio.sleep(0.2)
        now = await metrics_of(unused_tcp_port)
        assert not {key for key, value in counters(seen).items() if now.get(key, 0) < value}
        seen = now
    await both_at_work(command, job)
    await command.kill()
