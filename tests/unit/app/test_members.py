import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from members_contract import *  # noqa: F403  # the tests
from members_contract import join
from queue_worlds import VirtualClock

from dispatcher.app.clock import SystemClock
from dispatcher.app.members import LOOKUPS_MAX, Saved, load_members, read_saved
from dispatcher.app.sources import Membership, Source
from dispatcher.config import ServerEntry, load_config
from dispatcher.errors import StateError, StorageError
from dispatcher.model import ServerId, ServerSpec

A, B = "http://a:1", "http://b:1"


class Keep:
    """A file, and the service that has it."""

    def __init__(self, path):
        self.path = path
        self.clock = VirtualClock()

    @asynccontextmanager
    async def service(self, **settings):
        members = load_members(load_config(None, settings, {}), self.path, self.clock)
        membership = join(members)
        following = [asyncio.create_task(membership.follow(each, self.clock)) for each in members.sources()]
        async with members.kept_in(None):
            yield members
        for task in following:
            task.cancel()

    async def settle(self):
        await asyncio.sleep(0)

    async def pass_time(self, seconds):
        for _ in range(int(seconds)):
            self.clock.advance(1)
            await asyncio.sleep(0)


@pytest.fixture
def keep(path):
    return Keep(path)


def spec(url):
    return ServerSpec(ServerId(url), url)


class Told(list):
    """The ids of the servers that the pool was told of, each time."""

    def __call__(self, servers):
        self.append([server.id for server in servers])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "servers.json"


@pytest.fixture
def told():
    return Told()


def members_at(path, told, **settings):
    members = load_members(load_config(None, settings, {}), path, SystemClock())
    members.join(Membership([Source("servers", [spec(A)]), *members.sources()], told), None)
    return members


async def test_a_change_is_durable_before_it_takes_effect(path, told):
    members = members_at(path, told)
    path.mkdir()  # a file cannot be put in its place
    for change in (members.add(ServerEntry(url=B)), members.hold_out(ServerId(A), hold=True)):
        with pytest.raises(StorageError, match=r"servers\.json: cannot be written"):
            await change
    assert told == [[A]]
    assert list(members.listed()) == [A]


async def test_a_default_key_is_not_written(path, told):
    members = members_at(path, told, api_key="default")
    await members.add(ServerEntry(url=B))
    assert "default" not in path.read_text()


async def test_what_is_held_out_is_written_once(path, told):
    members = members_at(path, told)
    for hold in (True, True, False):
        await members.hold_out(ServerId(A), hold=hold)
    assert json.loads(path.read_text())["held_out"] == []


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"added": [{"url": 1}]}', b"[" * 9999])
def test_a_file_that_is_not_ours_is_named(path, content):
    path.write_bytes(content)
    with pytest.raises(StateError, match=r"servers\.json is not a list of added servers"):
        read_saved(path)


def test_a_file_with_a_server_that_cannot_be_is_named(path, told):
    path.write_text('{"added": [{"url": "ftp://x"}]}')
    with pytest.raises(StateError, match="holds a server that cannot be one: ftp://x"):
        members_at(path, told)


def test_where_nothing_was_saved_there_is_nothing(path):
    assert read_saved(path) == Saved()


class Names:
    """Answers when it is let; remembers how many asked at a time."""

    def __init__(self):
        self.let = asyncio.Event()
        self.asking = self.most = 0

    async def addresses(self, _host):
        self.asking += 1
        self.most = max(self.most, self.asking)
        await self.let.wait()
        self.asking -= 1
        return ["10.0.0.1"]


async def test_so_many_names_are_looked_up_at_a_time_and_no_more(path, told):
    token = {"name": "t", "hash": f"sha256:{'a' * 64}"}
    config = load_config(
        None, {"discovery": {"registration": {"tokens": [token], "networks": ["10.0.0.0/8"]}}}, {}
    )
    members, names = load_members(config, path, SystemClock()), Names()
    members.join(Membership(members.sources(), told), names)
    registering = [
        asyncio.create_task(members.register(ServerEntry(url=f"http://n{number}:1"), "t"))
        for number in range(40)
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    assert names.most == LOOKUPS_MAX
    names.let.set()
    assert {ttl_s for _, ttl_s in await asyncio.gather(*registering)} == {30.0}
    assert (names.most, len(told[-1])) == (LOOKUPS_MAX, 40)
