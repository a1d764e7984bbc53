"""Members that several services share: in a file here; tests/e2e/postgres has them over PostgreSQL."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from members_contract import *  # noqa: F403  # the tests
from members_contract import REGISTERING, TTL_S, A, B, C, join
from queue_worlds import VirtualClock
from structlog.testing import capture_logs

from dispatcher.api.members import MemberError
from dispatcher.app.joint_members import JointMembers, choose_members
from dispatcher.app.members import Members
from dispatcher.app.seen_members import PAUSE_S, Seen
from dispatcher.config import ServerEntry, load_config
from dispatcher.errors import QueueUnreachableError
from dispatcher.model import ServerId
from dispatcher.queue.members import MemberKind, MemberRecord
from dispatcher.queue.sql import open_queue
from dispatcher.queue.transactions import News, Topic


class Keep:
    """A queue, and the services that share it."""

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
        """Let what was rung for be done."""
        await self._turn()
        self.clock.advance(PAUSE_S)
        await self._turn()

    async def pass_time(self, seconds):
        for _ in range(int(seconds)):
            self.clock.advance(1)
            await self._turn()

    async def _turn(self):
        """Of the loop, and of the database."""
        for _ in range(8):
            await asyncio.sleep(0)
        await self.queue.members.list()
        await self.queue.members.list()


@pytest.fixture(scope="module")
def empty_queue(tmp_path_factory):
    path = tmp_path_factory.mktemp("queue") / "queue.db"

    async def make():
        async with open_queue(path, VirtualClock()):
            pass

    asyncio.run(make())
    return path.read_bytes()


@pytest.fixture
async def keep(tmp_path, empty_queue):
    clock = VirtualClock()
    (tmp_path / "queue.db").write_bytes(empty_queue)
    async with open_queue(tmp_path / "queue.db", clock) as queue:
        yield Keep(queue, clock)


async def test_what_one_service_is_told_the_others_know_when_it_is_announced(keep):
    async with keep.service(**REGISTERING) as one, keep.service(**REGISTERING) as other:
        await one.add(ServerEntry(url=B))
        await one.hold_out(ServerId(A), hold=True)
        await one.register(ServerEntry(url=C), "t")
        keep.queue.heard(News(Topic.MEMBERS))
        await keep.settle()
        assert other.told[-1] == one.told[-1] == [B, C]
        await other.remove(ServerId(B))
        assert await other.deregister(ServerId(C), "t")
        keep.queue.heard(None)  # what was announced may have been missed
        await keep.settle()
        assert one.told[-1] == []


async def test_news_that_never_came_is_seen_soon(keep):
    async with keep.service() as one, keep.service() as other:
        await one.add(ServerEntry(url=B))
        assert other.told[-1] == [A]
        await keep.pass_time(6)
        assert other.told[-1] == [A, B]


async def test_a_registration_is_renewed_at_any_service(keep):
    async with keep.service(**REGISTERING) as one, keep.service(**REGISTERING) as other:
        for turn in range(6):
            await (one, other)[turn % 2].register(ServerEntry(url=B), "t")
            await keep.pass_time(TTL_S / 3)
            assert one.told[-1] == other.told[-1] == [A, B]
        await keep.pass_time(TTL_S)
        assert one.told[-1] == other.told[-1] == [A]


async def test_a_change_decides_on_what_is_kept_and_not_on_what_was_seen(keep):
    async with keep.service() as one, keep.service() as other:
        await one.add(ServerEntry(url=B))
        await other.hold_out(ServerId(B), hold=True)
        await one.remove(ServerId(B))
        with pytest.raises(MemberError, match="there is no server"):
            await other.remove(ServerId(B))


async def test_of_two_tokens_that_register_a_server_at_two_services_one_is_refused(keep):
    async with keep.service(**REGISTERING) as one, keep.service(**REGISTERING) as other:
        answers = await asyncio.gather(
            one.register(ServerEntry(url=B), "t"),
            other.register(ServerEntry(url=B), "u"),
            return_exceptions=True,
        )
        assert sorted(type(answer).__name__ for answer in answers) == ["RegistrationError", "tuple"]


async def test_while_the_database_is_away_and_one_lifetime_after_nobody_is_dropped(keep, monkeypatch):
    async with keep.service(**REGISTERING) as members:
        await members.add(ServerEntry(url=C))
        await members.register(ServerEntry(url=B), "t")
        await keep.settle()

        async def unreachable():
            raise QueueUnreachableError("it restarts")

        with monkeypatch.context() as away:
            away.setattr(members._store, "list", unreachable)
            keep.clock.advance(60)
            await asyncio.sleep(0)
        await keep.pass_time(TTL_S - 5)
        assert members.told[-1] == [A, C, B]
        await keep.pass_time(12)
        assert members.told[-1] == [A, C]


async def test_keys_are_in_no_log_and_a_member_that_cannot_be_does_no_harm(keep):
    broken = MemberRecord("ftp://x", MemberKind.ADDED, {"api_key": "hush"})
    odd = MemberRecord(B, MemberKind.REGISTERED, {"api_key": ["hush"]}, "t")
    await keep.queue.members.put_all([broken, odd])
    with capture_logs() as logs:
        async with keep.service(**REGISTERING) as members:
            await members.add(ServerEntry(url=C, api_key="hush", headers={"X-A": "hush"}))
            assert members.told[-1] == [A, C]
    assert {(log["event"], log["server"]) for log in logs} == {
        ("member_not_read", "ftp://x"),
        ("member_not_read", B),
    }
    assert "hush" not in str(logs)
    assert "hush" not in repr(members.listed())


async def test_what_is_over_is_deleted_in_time(keep):
    async with keep.service(**REGISTERING) as members:
        await members.register(ServerEntry(url=B), "t")
        with capture_logs() as logs:
            await keep.pass_time(70)
        assert [(log["event"], log["server"]) for log in logs] == [("registration_expired", B)]


def test_where_they_are_kept_is_by_the_queue_and_a_file_that_is_not_used_any_more_is_told_of(tmp_path):
    path, clock = tmp_path / "servers.json", VirtualClock()
    assert isinstance(choose_members(load_config(None, {}, {}), path, clock), Members)
    shared = load_config(None, {"queue": {"url": "postgresql://h/db"}}, {})
    with capture_logs() as logs:
        assert isinstance(choose_members(shared, path, clock), JointMembers)
        assert logs == []
        path.write_text('{"added": [{"url": "http://b:1", "api_key": "hush"}], "held_out": ["http://a:1"]}')
        choose_members(shared, path, clock)
    (log,) = logs
    assert (log["event"], log["added"], log["drained"]) == ("servers_not_taken_over", 1, 1)
    assert "hush" not in str(log)


def registered(*urls):
    return [MemberRecord(url, MemberKind.REGISTERED) for url in urls]


def test_a_look_that_comes_in_time_drops_whoever_is_missing():
    seen = Seen(30, 0)
    assert seen.saw(registered(A, B), 1)
    assert not seen.saw(registered(A, B), 6)
    assert seen.saw(registered(A), 11)
    assert seen.urls(MemberKind.REGISTERED) == {A}


def test_after_a_gap_whoever_is_missing_has_one_more_lifetime_but_not_who_said_that_it_goes():
    seen = Seen(30, 0)
    added = [MemberRecord(C, MemberKind.ADDED)]
    seen.saw([*registered(A, B), *added], 1)
    seen.left(B)
    assert seen.saw([], 20)
    assert (seen.urls(MemberKind.REGISTERED), seen.urls(MemberKind.ADDED)) == ({A}, set())
    for now in range(25, 50, 5):
        assert not seen.saw([], now)
    assert seen.saw([], 50)
    assert seen.urls(MemberKind.REGISTERED) == set()


def test_the_shorter_a_registration_lasts_the_more_often_is_looked():
    assert [Seen(ttl_s, 0).look_s for ttl_s in (3, 12, 30, 3600)] == [0.5, 2, 5, 5]
