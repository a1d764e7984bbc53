"""Names that cannot be looked up while a job runs: one server's, all servers', or the resolver is down."""

import asyncio
import socket
from urllib.parse import urlsplit

import pytest
from failure_stage import Stage, fleet, rows, sends, until

from dispatcher.testing import FakeServerSettings
from dispatcher.testing.engine import EngineSettings

BRIEF = FakeServerSettings(
    engine=EngineSettings(max_sequences=8, decode_step_s=0.01), answer_tokens=20, keepalive_s=0.05
)
"""Idle connections live so briefly that every probe needs a new one, and with it a lookup."""


class Names:
    """The system's resolver, with names for the fake servers and faults as the test wants them."""

    def __init__(self, loop):
        self._real = loop.getaddrinfo
        self._fault = None
        self._lost = ()
        self.lookups = 0
        loop.getaddrinfo = self._look_up

    def url(self, number, server):
        return f"http://gpu{number}.test:{urlsplit(server.url).port}"

    def lose(self, *numbers, fault):
        """From now on these names cannot be looked up."""
        self._lost, self._fault, self.lookups = [f"gpu{number}.test" for number in numbers], fault, 0

    async def _look_up(self, host, port, **fields):
        name = host.decode() if isinstance(host, bytes) else host
        if name in self._lost:
            self.lookups += 1
            raise socket.gaierror(self._fault, "words")
        return await self._real("127.0.0.1" if name.endswith(".test") else host, port, **fields)


@pytest.fixture
async def names():
    names = Names(asyncio.get_running_loop())
    yield names
    del asyncio.get_running_loop().getaddrinfo


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


def evicted(job):
    return sum(view.evictions for view in job.snapshot().servers)


async def run(stage, names, servers, weather):
    """A job over these servers by their names, in which no row may be charged anything."""
    urls = [names.url(number, server) for number, server in enumerate(servers)]
    for url, server in zip(urls, servers, strict=True):
        server.name = url
    settings = {"servers": urls, "dispatch": {"max_attempts": 1}, "pool": {"limit": 8}}
    result = await stage.run(servers, rows(240), weather=weather, **settings)
    assert len(result.successes) == 240
    return {url: [look.state for look in result.seen if look.server == url] for url in urls}, {
        url: max(look.evictions for look in result.seen if look.server == url) for url in urls
    }


async def test_a_resolver_that_is_down_harms_no_server_that_is_connected(stage, names):
    async with fleet(3, BRIEF) as servers:

        async def weather(_job):
            await until(lambda: sum(sends(*servers).values()) > 30)
            names.lose(0, 1, 2, fault=socket.EAI_AGAIN)
            await until(lambda: names.lookups > 20)
            names.lose(fault=None)

        states, evictions = await run(stage, names, servers, weather)
        assert set(evictions.values()) == {0}
        for seen in states.values():
            assert set(seen[seen.index("active") :]) == {"active"}


async def test_a_resolver_that_is_down_at_the_start_is_waited_for(stage, names):
    async with fleet(2, BRIEF) as servers:
        names.lose(0, 1, fault=socket.EAI_AGAIN)

        async def weather(job):
            await until(lambda: names.lookups > 4)
            (reason,) = {view.reason.partition("Error: ")[0] for view in job.snapshot().servers}
            assert reason == "not answered yet: /health: offline: Connect"
            names.lose(fault=None)

        _, evictions = await run(stage, names, servers, weather)
        assert set(evictions.values()) == {0}


async def test_a_name_that_is_gone_is_its_server_s_fault_alone(stage, names):
    async with fleet(3, BRIEF) as servers:

        async def weather(job):
            await until(lambda: sum(sends(*servers).values()) > 30)
            names.lose(1, fault=socket.EAI_NONAME)
            await until(lambda: evicted(job) == 1)
            names.lose(fault=None)

        states, evictions = await run(stage, names, servers, weather)
        assert list(evictions.values()) == [0, 1, 0]
        assert states[servers[1].name][-1] == "active", "it came back with its name"


async def test_names_that_are_all_gone_at_once_take_half_of_the_fleet_at_most(stage, names):
    async with fleet(4, BRIEF) as servers:

        async def weather(job):
            await until(lambda: sum(sends(*servers).values()) > 30)
            names.lose(0, 1, 2, 3, fault=socket.EAI_NONAME)
            await until(lambda: evicted(job) == 2 and names.lookups > 60)
            names.lose(fault=None)

        _, evictions = await run(stage, names, servers, weather)
        assert sum(evictions.values()) == 2
