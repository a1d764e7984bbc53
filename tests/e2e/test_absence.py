"""The dispatcher stopped and let go on again: what ran out meanwhile is held against nobody."""

import asyncio
import signal
import socket
import urllib.request

import pytest
from commands import until
from jobs import rows, sends
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.testing.engine import EngineSettings
from dispatcher.testing.faults import Match, Respond

STOPPED_S = 5.0
SETTINGS = {
    "DISPATCHER_POOL__CONNECT_TIMEOUT_S": "1",
    "DISPATCHER_POOL__STALL_S": "2",
    "DISPATCHER_POOL__PROBE_INTERVAL_S": "0.2",
    "DISPATCHER_POOL__PROBE_TIMEOUT_S": "1",
    "DISPATCHER_POOL__SCRAPE_INTERVAL_S": "0.2",
    "DISPATCHER_DISPATCH__REQUEST_TIMEOUT_S": "4",
    "DISPATCHER_DISPATCH__MAX_ATTEMPTS": "1",
}
SLOW = EngineSettings(max_sequences=8, decode_step_s=0.04)
"""An answer takes some 0.8 s, so that requests are open whenever the dispatcher is stopped."""


@pytest.fixture
def metrics_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


async def verdicts(port):
    """How often each verdict was given to an attempt, and how many evictions there were."""

    def page():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return answer.read().decode()

    families = list(text_string_to_metric_families(await asyncio.to_thread(page)))
    samples = [sample for family in families for sample in family.samples]
    found = {}
    for sample in samples:
        if sample.name == "dispatcher_attempts_total":
            found[sample.labels["verdict"]] = found.get(sample.labels["verdict"], 0) + sample.value
    found["evictions"] = sum(each.value for each in samples if each.name == "dispatcher_evictions_total")
    return found


async def stop_for(command, seconds):
    command.send(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        command.send(signal.SIGCONT)


@pytest.mark.parametrize("metrics", [True, False], ids=["with metrics", "without metrics"])
async def test_a_stop_of_five_seconds_harms_no_server_and_costs_no_row_an_attempt(
    cli, job, serve, metrics_port, metrics
):
    servers = [await serve(engine=SLOW, answer_tokens=20) for _ in range(3)]
    for server in servers if not metrics else ():
        server.inject(Respond(404), Match(route="/metrics"))
    flags = ["--concurrency", 8, "--log-format", "json", "--metrics-port", metrics_port]
    command = await cli.start(*job.write(rows(240)).argv(*servers), *flags, env=SETTINGS)
    await until(lambda: len(sends(*servers)) > 60)
    await stop_for(command, STOPPED_S)
    answered = len(sends(*servers)) + 60
    await until(lambda: len(sends(*servers)) > answered)
    seen = await verdicts(metrics_port)
    done = await command.wait()
    assert done.status == 0, done.err
    assert seen.keys() <= {"success", "local_fault", "evictions"}
    assert seen["evictions"] == 0
    assert [entry["event"] for entry in done.events if entry["event"].startswith("server_")] == [
        "server_active"
    ] * 3
    (stood_still,) = done.named("stood_still")
    assert STOPPED_S - 1 < stood_still["seconds"] < STOPPED_S + 1
    assert len(job.ids) == 240
