"""Servers that come, go, die, lie or are reached in odd ways, as the command tells of them."""

import asyncio
import os
import urllib.request

import pytest
from commands import until
from gateway import proxy
from jobs import lines, row, rows, sends
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.faults import Die

QUICK = {
    "DISPATCHER_POOL__PROBE_INTERVAL_S": "0.1",
    "DISPATCHER_POOL__READMIT_BACKOFF_MIN_S": "0.1",
    "DISPATCHER_POOL__READMIT_BACKOFF_MAX_S": "0.2",
    "DISPATCHER_POOL__SCRAPE_INTERVAL_S": "0.2",
}
SLOW = EngineSettings(max_sequences=8, decode_step_s=0.01)


async def scrape(port):
    """The dispatcher's metrics: (name, labels in order) -> value."""
    page = await asyncio.to_thread(_get, f"http://127.0.0.1:{port}/metrics")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def _get(url):
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  # ours
        return answer.read().decode()


@pytest.mark.parametrize("suffix", ["", "/", "/v1"])
async def test_a_path_prefix_is_kept(cli, job, server, suffix):
    async with proxy(server, "/team/llm") as url:
        done = await cli.run(*job.write([*rows(3), row(3, "/tokenize")]).argv(url + suffix))
    assert done.status == 0, done.err
    assert len(sends(server)) == 4


async def test_a_server_that_dies_and_comes_back_is_evicted_and_readmitted(cli, job, serve, unused_tcp_port):
    port = unused_tcp_port
    dying, steady = [await serve(engine=SLOW, answer_tokens=6) for _ in range(2)]
    flags = ["--metrics-port", port, "--log-format", "json", "--concurrency", 8]
    command = await cli.start(*job.write(rows(600)).argv(dying, steady), *flags, env=QUICK)
    await until(lambda: len(sends(dying)) > 20)
    assert (await scrape(port))["dispatcher_server_state", dying.url, "active"] == 1
    await dying.die(Die(seconds=None))
    await until(lambda: "server_evicted" in command.err)
    during = await scrape(port)
    assert during["dispatcher_server_state", dying.url, "active"] == 0
    assert during["dispatcher_server_in_flight", dying.url] == 0
    await dying.restart()
    before = len(sends(dying))
    await until(lambda: len(sends(dying)) > before)
    after = await scrape(port)
    done = await command.wait()
    assert done.status == 0, done.err
    evictions = sum(
        v for k, v in after.items() if k[:1] == ("dispatcher_evictions_total",) and dying.url in k
    )
    assert evictions == 1
    assert after["dispatcher_readmissions_total", dying.url] == 1
    of_steady = [v for k, v in after.items() if k[0] == "dispatcher_evictions_total" and steady.url in k]
    assert of_steady == [0, 0]
    assert len(job.ids) == 600


@pytest.fixture
def unused_tcp_port():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


async def test_the_metrics_of_a_run_add_up(cli, job, serve, unused_tcp_port):
    server = await serve(engine=SLOW, answer_tokens=4)
    flags = ["--metrics-port", unused_tcp_port, "--concurrency", 4]
    command = await cli.start(*job.write(rows(300)).argv(server), *flags)
    await until(lambda: len(job.recorded()) > 30)
    seen = await scrape(unused_tcp_port)
    assert command.running
    assert seen["dispatcher_server_limit", server.url] == 4
    assert 0 < seen["dispatcher_outcomes_total", "success"] <= len(sends(server)) < 300
    assert (
        seen["dispatcher_attempts_total", server.url, "success"]
        >= seen["dispatcher_outcomes_total", "success"]
    )
    assert (await command.wait()).status == 0


async def test_a_metrics_port_in_use_is_a_configuration_error(cli, job, server):
    done = await cli.run(*job.write(rows(2)).argv(server), "--metrics-port", server.port)
    assert done.status == 2
    assert "telemetry.metrics_port" in done.err
    assert str(server.port) in done.err
    assert sends(server) == []


async def test_a_metrics_port_in_use_is_found_before_the_input_is_read(cli, job, server):
    job.input.write_text("this is no request\n")
    done = await cli.run(*job.argv(server), "--metrics-port", server.port)
    assert done.status == 2
    assert "telemetry.metrics_port" in done.err
    assert "line 1" not in done.err
    assert not job.state.exists()


async def test_metrics_are_served_while_the_input_is_still_being_read(cli, job, server, unused_tcp_port):
    pipe = job.directory / "pipe"
    os.mkfifo(pipe)
    flags = ["--metrics-port", unused_tcp_port]
    command = await cli.start("run", pipe, "-o", job.output, "--server", server.url, *flags)
    with await asyncio.to_thread(pipe.open, "w") as writer:
        health = await asyncio.to_thread(_get, f"http://127.0.0.1:{unused_tcp_port}/healthz")
        writer.write(lines(rows(3)))
    done = await command.wait()
    assert (health, done.status) == ("ok\n", 0), done.err


async def test_no_reachable_server_is_said_within_seconds(cli, job):
    command = await cli.start(*job.write(rows(2)).argv("http://127.0.0.1:9"), "--log-format", "json")
    await until(lambda: "waiting_for_servers" in command.err, timeout_s=8)
    assert "http://127.0.0.1:9" in command.err
    assert "refused" in command.err.lower()
    assert command.running


async def test_a_model_that_no_server_lists_waits_and_says_so_while_the_rest_goes_on(cli, job, server):
    job.write([*rows(5), row(5, model="absent")])
    command = await cli.start(*job.argv(server), "--log-format", "json")
    await until(lambda: len(job.recorded()) == 5)
    await until(lambda: "waiting_for_servers" in command.err)
    assert '"absent"' in command.err
    assert command.running
    assert len(sends(server)) == 5


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY"])
async def test_proxies_of_the_environment_are_not_used(cli, job, server, variable):
    done = await cli.run(*job.write(rows(3)).argv(server), env={variable: "http://127.0.0.1:9"}, timeout_s=10)
    assert done.status == 0, done.err
