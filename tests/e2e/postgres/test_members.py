"""Members that services share over PostgreSQL, each with connections of its own."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from members_contract import *  # noqa: F403  # the tests
from members_contract import REGISTERING, REGISTRATION, TTL_S, A, B, C, join
from postgres_server import open_postgres
from queue_worlds import LEASE_S
from sqlalchemy import literal

from dispatcher.app.clock import SystemClock
from dispatcher.app.joint_members import JointMembers
from dispatcher.app.seen_members import PAUSE_S
from dispatcher.config import ServerEntry, load_config
from dispatcher.config.queue import queue_url
from dispatcher.errors import QueueUnreachableError
from dispatcher.queue.listening import listening
from dispatcher.queue.migrating import open_migration
from dispatcher.queue.postgresql import open_postgresql
from dispatcher.queue.shared import open_shared_queue
from dispatcher.queue.sql import SqlQueue

pytestmark = pytest.mark.services
TURN_S = 0.02


class Keep:
    """A database, whose time is the test's, and the services that share it."""

    def __init__(self, queue, clock):
        self.queue = queue
        self.clock = clock

    @asynccontextmanager
    async def service(self, **settings):
        config = load_config(None, settings, {})
        members = JointMembers(self.clock, config.discovery.registration, config.api_key)
        join(members)
        async with members.kept_in(self.queue):
            yield members

    async def settle(self):
        for _ in range(4):
            await asyncio.sleep(TURN_S)  # of the database
            self.clock.advance(PAUSE_S)
        await asyncio.sleep(TURN_S)

    async def pass_time(self, seconds):
        for _ in range(int(seconds)):
            self.clock.advance(1)
            await asyncio.sleep(TURN_S)


@pytest.fixture
async def keep(url, clock):
    async with open_postgresql(url, SystemClock()) as database:
        queue = SqlQueue(database, clock, lambda: literal(clock.wall()), LEASE_S)
        async with listening(url, queue.heard):
            yield Keep(queue, clock)


@asynccontextmanager
async def services(url, count, **settings):
    """Members of so many services, as in so many processes, by the real time."""
    config, clock = load_config(None, settings, {}), SystemClock()
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            queue = await stack.enter_async_context(open_shared_queue(url, clock))
            members = JointMembers(clock, config.discovery.registration, config.api_key)
            join(members)
            await stack.enter_async_context(members.kept_in(queue))
            made.append(members)
        yield made


async def all_have(listed, members):
    """Within the second that is promised."""
    async with asyncio.timeout(1):
        while any(each.told[-1] != listed for each in members):  # noqa: ASYNC110  # by the database's news
            await asyncio.sleep(0.01)


async def test_what_one_is_told_all_know_within_a_second(url):
    async with services(url, 3, **REGISTERING) as members:
        one, other, third = members
        await asyncio.sleep(0.5)  # they listen by now
        await one.add(ServerEntry(url=B, api_key="k"))
        await all_have([A, B], members)
        assert third.listed()[B].server.api_key == "k"
        await other.register(ServerEntry(url=C), "t")
        await all_have([A, B, C], members)
        await third.hold_out(A, hold=True)
        await all_have([B, C], members)
        await third.remove(B)
        await all_have([C], members)
        assert await one.deregister(C, "t")
        await all_have([], members)


async def test_changes_of_several_at_once_are_all_kept(url):
    async with services(url, 3, **REGISTERING) as members:
        added = [
            each.add(ServerEntry(url=f"http://n{first}[0-9]:1"))
            for first, each in enumerate((*members, *members))
        ]
        held = [each.hold_out(A, hold=True) for each in members]
        registered = [each.register(ServerEntry(url=B), "t") for each in members]
        await asyncio.gather(*added, *held, *registered)
        await all_have(
            [*(f"http://n{first}{last}:1" for first in range(6) for last in range(10)), B], members
        )
        assert all(each.listed()[A].held_out for each in members)


async def test_one_that_registers_again_after_its_time_is_news(keep, monkeypatch):
    monkeypatch.setattr("dispatcher.app.joint_members.EXPIRE_S", 1000)  # its row is there still
    async with keep.service(**REGISTERING) as one, keep.service(**REGISTERING) as other:
        await one.register(ServerEntry(url=B), "t")
        await keep.pass_time(TTL_S + 6)
        assert other.told[-1] == [A]
        await one.register(ServerEntry(url=B), "t")
        await keep.settle()
        assert other.told[-1] == [A, B]


async def test_of_two_tokens_that_register_a_server_at_once_one_is_refused(url):
    async with services(url, 2, **REGISTERING) as members:
        answers = await asyncio.gather(
            *(each.register(ServerEntry(url=B), token) for each, token in zip(members, "tu", strict=True)),
            return_exceptions=True,
        )
        assert sorted(type(answer).__name__ for answer in answers) == ["RegistrationError", "tuple"]


async def test_a_restart_of_all_services_keeps_what_was_added_and_held_out(url):
    async with services(url, 2) as (one, other):
        await one.add(ServerEntry(url=B, limit=3))
        await other.hold_out(A, hold=True)
    async with services(url, 1) as (again,):
        assert again.told == [[B]]
        assert again.listed()[B].server.limit == 3


@pytest.fixture
def own_server():
    """A PostgreSQL that the test may stop, with the queue's tables in a database."""
    with open_postgres() as server:
        url = queue_url(server.fresh_database("queue"))

        async def migrate():
            async with open_migration(url, SystemClock()) as migration:
                await migration.run()

        asyncio.run(migrate())
        yield server, url


async def test_an_outage_longer_than_a_registration_drops_nobody_but_who_stays_away(own_server):
    server, url = own_server
    short = {"discovery": {"registration": {**REGISTRATION, "ttl_s": 3}}}
    async with services(url, 2, **short) as members:
        one, other = members
        await one.register(ServerEntry(url=B), "t")
        await one.register(ServerEntry(url=C), "t")
        async with asyncio.timeout(3):
            while {A, B, C} - set(other.told[-1]):  # noqa: ASYNC110  # by the database's news
                await asyncio.sleep(0.01)
        for each in members:
            each.told[:-1] = []
        await asyncio.to_thread(server.stop)
        with pytest.raises(QueueUnreachableError):
            await one.register(ServerEntry(url=B), "t")
        await asyncio.sleep(4)
        await asyncio.to_thread(server.start)
        for _ in range(6):  # as a registrar does it
            with suppress(QueueUnreachableError):
                await other.register(ServerEntry(url=B), "t")
            await asyncio.sleep(1)
        assert (
            [set(listed) for listed in one.told]
            == [set(listed) for listed in other.told]
            == [{A, B, C}, {A, B}]
        )
