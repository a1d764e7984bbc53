"""What every `api.members.Members` does. Needs the fixture `keep`: what outlives a service, and opens one.

`async with keep.service(**settings) as members` is the members of a service that lists A in its
configuration and looks up any name as 10.0.0.1; `members.told` is what its pool was told, each time.
"""

import pytest

from dispatcher.api.members import MemberError
from dispatcher.app.sources import Membership, Source
from dispatcher.config import ServerEntry
from dispatcher.discovery.registration import ForbiddenAddressError, RegistrationError
from dispatcher.model import ServerId, ServerSpec

A, B, C = "http://a:1", "http://b:1", "http://c:1"
TTL_S = 30.0
REGISTRATION = {
    "tokens": [{"name": name, "hash": f"sha256:{letter * 64}"} for name, letter in (("t", "a"), ("u", "b"))],
    "networks": ["10.0.0.0/8"],
}
REGISTERING = {"discovery": {"registration": REGISTRATION}}


class Told(list):
    """The ids of the servers that the pool was told of, each time that they were others."""

    def __call__(self, servers):
        ids = [server.id for server in servers]
        if self[-1:] != [ids]:
            self.append(ids)


class Names:
    async def addresses(self, host):
        return ["192.168.0.1"] if host == "elsewhere" else ["10.0.0.1"]


def join(members):
    """Have these members act on a membership of their own; return that. `members.told` is what it tells."""
    members.told = Told()
    configured = Source("servers", [ServerSpec(ServerId(A), A)])
    membership = Membership([configured, *members.sources()], members.told)
    members.join(membership, Names())
    return membership


async def test_what_is_added_and_held_out_is_there_again(keep):
    async with keep.service() as members:
        await members.add(ServerEntry(url=B, api_key="k", headers={"X-A": "b"}, limit=3))
        await members.hold_out(ServerId(A), hold=True)
        assert members.told[-2:] == [[A, B], [B]]
    async with keep.service() as again:
        assert again.told[-1] == [B]
        added = again.listed()[ServerId(B)]
        assert (added.server.api_key, added.server.headers, added.server.limit) == ("k", (("X-A", "b"),), 3)
        held_out = again.listed()[ServerId(A)].held_out
        assert (added.source, added.held_out, held_out) == ("added", False, True)


async def test_an_added_server_is_changed_by_adding_it_again(keep):
    async with keep.service() as members:
        for limit in (3, None, 7):
            await members.add(ServerEntry(url=B, limit=limit))
            assert members.listed()[ServerId(B)].server.limit == limit


async def test_an_added_server_without_a_key_gets_the_default_one(keep):
    async with keep.service(api_key="default") as members:
        await members.add(ServerEntry(url=B))
        assert members.listed()[ServerId(B)].server.api_key == "default"
    async with keep.service(api_key="another") as again:
        assert again.listed()[ServerId(B)].server.api_key == "another"


async def test_a_removed_server_is_not_held_out_when_it_is_added_again(keep):
    async with keep.service() as members:
        await members.add(ServerEntry(url=B))
        await members.hold_out(ServerId(B), hold=True)
        await members.remove(ServerId(B))
        assert members.told[-1] == [A]
        await members.add(ServerEntry(url=B))
        assert members.told[-1] == [A, B]


async def test_holding_out_twice_is_holding_out_once(keep):
    async with keep.service() as members:
        for hold in (True, True, False):
            await members.hold_out(ServerId(A), hold=hold)
        assert members.told[-1] == [A]


async def test_what_another_source_lists_or_nobody_is_refused(keep):
    async with keep.service() as members:
        for change, status in (
            (members.add(ServerEntry(url=A)), 409),
            (members.remove(ServerId(A)), 409),
            (members.remove(ServerId(B)), 404),
            (members.hold_out(ServerId(B), hold=True), 404),
        ):
            with pytest.raises(MemberError) as caught:
                await change
            assert caught.value.status == status
    async with keep.service() as again:
        assert again.told == [[A]]


async def test_there_are_no_more_added_servers_than_one_list_can_name(keep, monkeypatch):
    monkeypatch.setattr("dispatcher.app.members.ADDED_MAX", 2)
    async with keep.service() as members:
        with pytest.raises(MemberError, match="at most 2"):
            await members.add(ServerEntry(url="http://c[1-3]:1"))
        assert list(await members.add(ServerEntry(url="http://c[1-2]:1"))) == ["http://c1:1", "http://c2:1"]
        assert members.told[-1] == [A, "http://c1:1", "http://c2:1"]


async def test_nobody_registers_where_nobody_may(keep):
    async with keep.service() as members:
        with pytest.raises(MemberError) as caught:
            await members.register(ServerEntry(url=B), "t")
        assert caught.value.status == 404


async def test_a_server_registers_at_the_address_that_was_checked_and_leaves(keep):
    async with keep.service(**REGISTERING, api_key="not-for-it") as members:
        entry = ServerEntry(url=B, headers={"X-A": "b"}, limit=5)
        assert await members.register(entry, "t") == (B, TTL_S)
        await keep.settle()
        member = members.listed()[ServerId(B)]
        assert (member.source, member.server) == (
            "registered",
            ServerSpec(ServerId(B), "http://10.0.0.1:1", None, (("X-A", "b"),), 5, "b"),
        )
        assert await members.deregister(ServerId(B), "t")
        await keep.settle()
        assert members.told == [[A], [A, B], [A]]
        assert not await members.deregister(ServerId(B), "t")


async def test_a_server_elsewhere_is_not_registered(keep):
    async with keep.service(**REGISTERING) as members:
        with pytest.raises(ForbiddenAddressError):
            await members.register(ServerEntry(url="http://elsewhere:1"), "t")
        await keep.settle()
        assert members.told == [[A]]


async def test_another_tokens_server_is_neither_taken_over_nor_deregistered(keep):
    async with keep.service(**REGISTERING) as members:
        await members.register(ServerEntry(url=B, limit=5), "t")
        with pytest.raises(RegistrationError, match="another token's holder"):
            await members.register(ServerEntry(url=B, limit=6), "u")
        with pytest.raises(RegistrationError, match="another token's holder"):
            await members.deregister(ServerId(B), "u")
        await keep.settle()
        assert members.listed()[ServerId(B)].server.limit == 5
        assert await members.deregister(ServerId(B), "t")
        assert await members.register(ServerEntry(url=B, limit=6), "u") == (B, TTL_S)


async def test_a_registration_that_is_not_renewed_ends(keep):
    async with keep.service(**REGISTERING) as members:
        await members.register(ServerEntry(url=B), "t")
        await members.register(ServerEntry(url=C), "t")
        await keep.pass_time(TTL_S - 2)
        await members.register(ServerEntry(url=C), "t")
        await keep.pass_time(TTL_S - 2)
        assert members.told[-1] == [A, C]
        await members.register(ServerEntry(url=B), "u")  # it is nobody's now
        await keep.settle()
        assert sorted(members.told[-1]) == [A, B, C]


async def test_a_changed_registration_takes_effect(keep):
    async with keep.service(**REGISTERING) as members:
        for limit in (5, 6):
            await members.register(ServerEntry(url=B, limit=limit), "t")
            await keep.settle()
            assert members.listed()[ServerId(B)].server.limit == limit


async def test_there_are_no_more_registered_servers_than_one_list_can_name(keep, monkeypatch):
    for module in ("dispatcher.discovery.registration", "dispatcher.app.joint_members"):
        monkeypatch.setattr(f"{module}.REGISTERED_MAX", 1)
    async with keep.service(**REGISTERING) as members:
        await members.register(ServerEntry(url=B), "t")
        await keep.settle()
        await members.register(ServerEntry(url=B, limit=3), "t")
        with pytest.raises(RegistrationError, match="there are 1 registered servers already"):
            await members.register(ServerEntry(url=C), "t")
