"""Servers found by DNS: a real name server, real HTTP, and a job that goes on while records come and go."""

from contextlib import asynccontextmanager

import pytest
from jobs import rows, sends
from name_server import NameServer
from running import started
from structlog.testing import capture_logs

from dispatcher import Dispatcher
from dispatcher.app import sources
from dispatcher.app.fleet import open_fleet, open_metrics
from dispatcher.config import load_config
from dispatcher.discovery.resolver import SystemResolver
from dispatcher.testing.engine import EngineSettings

SLOW = EngineSettings(max_sequences=8, decode_step_s=0.01)
QUICK = {"probe_interval_s": 0.1, "scrape_interval_s": 0.2, "readmit_backoff_min_s": 0.1, "limit": 4}
NAME, SRV = "vllm.test", "_http._tcp.vllm.test"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(sources, "LOOK_EVERY_S", 0.05)


@pytest.fixture
async def names():
    async with NameServer() as server:
        yield server


@pytest.fixture
def serve_at(serve):
    """Servers at 127.0.0.1, 127.0.0.2, ... that share a port, as a name's addresses do."""

    async def start(count, **settings):
        first = await serve(**settings)
        return [
            first,
            *[await serve(f"127.0.0.{last}", first.port, **settings) for last in range(2, count + 1)],
        ]

    return start


@asynccontextmanager
async def running(job, names, *listed, **settings):
    config = load_config(
        None,
        {
            "pool": QUICK,
            "run": {"output": str(job.output)},
            **settings,
            "discovery": {"dns": list(listed), **settings.get("discovery", {})},
        },
        {},
    )
    async with (
        open_metrics(config) as metrics,
        SystemResolver(names.getaddrinfo, names.resolver) as resolver,
        open_fleet(config, metrics, resolver=resolver) as fleet,
        started(job, config, fleet) as run,
    ):
        yield run


def addresses(*servers):
    return [server.url.removeprefix("http://").partition(":")[0] for server in servers]


async def test_servers_whose_addresses_are_added_get_rows(job, names, serve_at):
    servers = await serve_at(8, engine=SLOW, answer_tokens=8)
    names.set(NAME, "A", *addresses(*servers[:2]))
    async with running(job.write(rows(600)), names, f"http://{NAME}:{servers[0].port}/v1") as going:
        await going.until(lambda: all(sends(server) for server in servers[:2]))
        assert going.states(*servers[2:]) == [None] * 6
        names.set(NAME, "A", *addresses(*servers))
        await going.until(lambda: all(sends(server) for server in servers))
        summary = await going.end(600)
    assert set(summary.snapshot.by_server) == {server.url for server in servers}
    assert len(sends(*servers)) == 600


async def test_a_server_whose_address_vanishes_ends_what_it_has_and_gets_no_more(job, names, serve_at):
    leaving, staying = servers = await serve_at(2, engine=SLOW, answer_tokens=30)
    names.set(NAME, "A", *addresses(*servers))
    async with running(job.write(rows(40)), names, f"http://{NAME}:{leaving.port}") as going:
        await going.until(lambda: leaving.in_flight == 4)
        names.set(NAME, "A", *addresses(staying))
        await going.until(lambda: going.states(leaving) == ["draining"])
        held = []

        def gone():
            view = going.server(leaving)
            held.append(view.in_flight if view else 0)
            return view is None

        await going.until(gone)
        summary = await going.end(40)
    assert held == sorted(held, reverse=True)
    assert held[0] > 0
    assert leaving.disconnects == 0
    assert summary.snapshot.by_server[leaving.url] == len(sends(leaving))
    assert len(sends(*servers)) == 40


MOODS = {
    "SERVFAIL": lambda names: setattr(names, "rcode", "SERVFAIL"),
    "NXDOMAIN": lambda names: names.set(NAME, "A"),
    "no address": lambda names: (names.set(NAME, "A"), names.set(NAME, "TXT", "moved")),
    "silence": lambda names: setattr(names, "silent", True),
}


@pytest.mark.parametrize("mood", MOODS.values(), ids=MOODS)
async def test_a_name_that_cannot_be_looked_up_any_more_costs_nothing_and_is_said_once(
    job, names, serve_at, mood
):
    servers = await serve_at(2, engine=SLOW, answer_tokens=4)
    names.set(NAME, "A", *addresses(*servers))
    with capture_logs() as logs:
        async with running(job.write(rows(300)), names, f"http://{NAME}:{servers[0].port}") as going:
            await going.until(lambda: going.states(*servers) == ["active"] * 2)
            mood(names)
            await going.until(lambda: any(log["event"] == "dns_name_faulty" for log in logs))
            asked = len(names.questions)
            await going.until(lambda: len(names.questions) >= asked + 4)
            assert going.states(*servers) == ["active"] * 2
            await going.end(300)
    assert len(sends(*servers)) == 300
    assert [log["event"] for log in logs if log["event"].startswith("dns")] == [
        "dns_name_changed",
        "dns_name_faulty",
    ]


async def test_srv_records_give_each_server_its_own_port(job, names, serve):
    servers = [await serve(engine=SLOW, answer_tokens=8) for _ in range(3)]

    def records(*listed):
        return [f"{10 * order} 1 {server.port} 127.0.0.1." for order, server in enumerate(listed)]

    names.set(SRV, "SRV", *records(*servers[:2]))
    async with running(job.write(rows(300)), names, f"srv+http://{SRV}") as going:
        await going.until(lambda: all(sends(server) for server in servers[:2]))
        names.set(SRV, "SRV", *records(*servers[1:]))
        await going.until(lambda: going.states(servers[0]) == [None])
        await going.until(lambda: sends(servers[2]))
        await going.end(300)
    assert len(sends(*servers)) == 300


async def test_all_sources_count_together_and_none_takes_away_what_another_lists(job, names, serve_at):
    static, listed, named, both = servers = await serve_at(4, engine=SLOW, answer_tokens=8)
    file = job.directory / "servers.txt"
    file.write_text(f"{listed.url}\n{both.url}\n")
    names.set(NAME, "A", *addresses(static, named, both))
    entry = {"url": f"http://{NAME}:{static.port}", "limit": 2}
    async with running(
        job.write(rows(400)), names, entry, servers=[static.url], discovery={"file": str(file)}
    ) as going:
        await going.until(lambda: going.states(*servers) == ["active"] * 4)
        assert len(going.run.snapshot().servers) == 4
        await going.until(lambda: [going.server(server).limit for server in servers] == [4, 4, 2, 4])
        names.set(NAME, "A", "127.0.0.99")
        await going.until(lambda: going.states(named) == [None])
        assert going.states(static, listed, both) == ["active"] * 3
        file.write_text(f"{listed.url}\n")
        await going.until(lambda: going.states(both) == [None])
        assert going.states(static, listed) == ["active"] * 2
        await going.end(400)
    assert len(sends(*servers)) == 400


async def test_a_name_that_does_not_exist_yet_is_waited_for(job, names, server):
    with capture_logs() as logs:
        async with running(job.write(rows(20)), names, f"http://{NAME}:{server.port}") as going:
            await going.until(lambda: any(log["event"] == "waiting_for_servers" for log in logs))
            names.set(NAME, "A", "127.0.0.1")
            summary = await going.end(20)
    faulty, waiting = logs[:2]
    assert (faulty["event"], faulty["name"]) == ("dns_name_faulty", f"http://{NAME}:{server.port}")
    assert (waiting["event"], waiting["servers"]) == ("waiting_for_servers", {})
    assert summary.snapshot.done.succeeded == 20


async def test_the_option_takes_a_name_that_the_system_knows(cli, job, server):
    done = await cli.run(*job.write(rows(3)).argv(), "--servers-dns", f"http://localhost:{server.port}/v1")
    assert done.status == 0, done.err
    assert len(sends(server)) == 3


async def test_the_python_face_takes_a_name_too(server):
    request = {"custom_id": "a", "url": "/v1/completions", "body": {"model": "fake-model", "prompt": "x"}}
    async with Dispatcher(discovery={"dns": [f"http://localhost:{server.port}"]}) as fleet:
        outcomes = [outcome async for outcome in fleet.stream([request])]
    assert [(each.ok, each.provenance.server) for each in outcomes] == [(True, server.url)]


async def test_names_that_no_one_knows_are_no_fault_of_the_settings(cli, job):
    flags = ["--servers-dns", "http://a.invalid:1", "--servers-dns", "srv+http://b.invalid"]
    done = await cli.run(*job.write(rows(2)).argv(), *flags, "--wait-for-servers", 1, "--log-format", "json")
    assert done.status == 3, done.err
    assert f'"name":"{flags[1]}"' in done.err.replace(" ", "")
    assert f'"name":"{flags[3]}"' in done.err.replace(" ", "")


async def test_every_faulty_name_is_named_with_all_else_that_is_wrong(cli, job):
    flags = ["--servers-dns", "ftp://a.test", "--servers-dns", "srv+http://b.test:80", "--server", "nowhere"]
    done = await cli.run(*job.write(rows(2)).argv(), *flags, "--max-attempts", 0)
    assert done.status == 2
    places = ("servers[0].url", "discovery.dns[0].url", "discovery.dns[1].url", "dispatch.max_attempts")
    assert all(place in done.err for place in places), done.err
