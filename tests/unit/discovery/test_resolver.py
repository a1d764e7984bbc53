"""The system's resolver, and a real name server on loopback."""

import asyncio
import socket
import subprocess
import sys

import dns.asyncresolver
import pytest
from name_server import NameServer

from dispatcher.discovery import resolver as module
from dispatcher.discovery.dns import NameLookupError
from dispatcher.discovery.resolver import LOOKUP_S, SystemResolver
from dispatcher.testing.simulation.virtual_loop import run_virtually

SRV = "_http._tcp.vllm.test"


@pytest.fixture
async def names():
    async with NameServer() as server:
        yield server


@pytest.fixture
async def resolver(names):
    async with SystemResolver(names.getaddrinfo, names.resolver) as resolver:
        yield resolver


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(module, "LOOKUP_S", 0.1)


async def complaint_of(looking):
    with pytest.raises(NameLookupError) as caught:
        await looking
    return str(caught.value)


async def test_the_systems_own_files_are_honoured():
    async with SystemResolver() as resolver:
        assert "127.0.0.1" in await resolver.addresses("localhost")


async def test_the_system_says_why_a_name_has_no_address():
    async with SystemResolver() as resolver:
        assert await complaint_of(resolver.addresses("nothing.invalid"))
        long = await complaint_of(resolver.addresses("x" * 64 + ".invalid"))
        assert long in {"UnicodeError", "UnicodeEncodeError"}  # the latter since Python 3.13


async def test_addresses_of_both_kinds_are_found(names, resolver):
    names.set("vllm.test", "A", "127.0.0.2", "127.0.0.1")
    names.set("vllm.test", "AAAA", "2001:db8::1")
    assert await resolver.addresses("vllm.test") == {"127.0.0.1", "127.0.0.2", "2001:db8::1"}


async def test_targets_and_ports_of_all_priorities_are_found(names, resolver):
    names.set(SRV, "SRV", "0 5 8000 gpu1.test.", "10 1 8001 gpu2.test.", "10 0 8002 gpu1.test.")
    assert await resolver.services(SRV) == {("gpu1.test", 8000), ("gpu2.test", 8001), ("gpu1.test", 8002)}


async def test_search_domains_are_honoured(names):
    names.set(SRV, "SRV", "0 0 8000 gpu1.test.")

    def with_search_domain():
        resolver = names.resolver()
        resolver.search = [dns.name.from_text("other.test."), dns.name.from_text("vllm.test.")]
        return resolver

    async with SystemResolver(open_resolver=with_search_domain) as resolver:
        assert await resolver.services("_http._tcp") == {("gpu1.test", 8000)}


async def test_all_of_many_records_are_found_where_udp_would_hold_a_part_of_them(names, resolver):
    names.udp_records_max = 3
    names.set(SRV, "SRV", *(f"0 0 {port} gpu{port}.test." for port in range(8000, 8500)))
    assert len(await resolver.services(SRV)) == 500
    assert {protocol for *_, protocol in names.questions} == {"TCP"}


async def test_a_name_server_without_tcp_is_asked_over_udp(names, resolver):
    names.has_tcp = False
    names.set(SRV, "SRV", "0 0 8000 gpu1.test.")
    assert await resolver.services(SRV) == {("gpu1.test", 8000)}


async def test_a_name_server_that_has_answered_over_tcp_is_not_asked_over_udp_when_that_fails(
    names, resolver
):
    names.set(SRV, "SRV", "0 0 8000 gpu1.test.")
    await resolver.services(SRV)
    names.has_tcp = False
    assert "fail" in await complaint_of(resolver.services(SRV))
    assert {protocol for *_, protocol in names.questions} == {"TCP"}


async def test_every_failure_has_a_reason_that_is_the_same_each_time(names, resolver):
    names.set("other.test", "A", "127.0.0.1")
    reasons = {}
    for mood in (None, "SERVFAIL", "REFUSED"):
        names.rcode = mood
        reasons[mood] = [await complaint_of(resolver.services(SRV)) for _ in range(2)]
    names.rcode = None
    reasons["no records"] = [await complaint_of(resolver.services("other.test")) for _ in range(2)]
    assert reasons == {
        None: ["there is no such name"] * 2,
        "SERVFAIL": ["the name servers fail: SERVFAIL"] * 2,
        "REFUSED": ["the name servers fail: REFUSED"] * 2,
        "no records": ["it has no SRV records"] * 2,
    }


async def test_a_silent_name_server_is_not_waited_for_for_ever(names, resolver, impatient):
    names.silent = True
    assert [await complaint_of(resolver.services(SRV)) for _ in range(2)] == ["no answer within 0.05 s"] * 2


async def test_where_no_name_server_is_configured_that_is_said(tmp_path):
    def absent():
        return dns.asyncresolver.Resolver(str(tmp_path / "resolv.conf"))

    async with SystemResolver(open_resolver=absent) as resolver:
        assert await complaint_of(resolver.services(SRV)) == "no name server is configured"


class Hanging:
    """A `getaddrinfo` whose every lookup hangs until it is let go, but for those of one name."""

    def __init__(self, but=None):
        self.lookups = []
        self._but = but
        self.released = asyncio.Event()

    async def __call__(self, host, _port, **_hints):
        self.lookups.append(host)
        if host != self._but:
            await self.released.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


async def seconds_until_given_up(looking):
    began = asyncio.get_running_loop().time()
    assert await complaint_of(looking) == "no answer within 5 s"
    return asyncio.get_running_loop().time() - began


def test_a_lookup_that_hangs_is_waited_for_again_and_never_doubled():
    async def story():
        hanging = Hanging()
        async with SystemResolver(hanging) as resolver:
            for _ in range(3):
                assert await seconds_until_given_up(resolver.addresses("a.test")) == LOOKUP_S
            assert hanging.lookups == ["a.test"]
            hanging.released.set()
            assert await resolver.addresses("a.test") == {"127.0.0.1"}
            await resolver.addresses("a.test")
            assert hanging.lookups == ["a.test", "a.test"]

    run_virtually(story())


def test_a_name_that_hangs_holds_up_no_other():
    async def story():
        async with SystemResolver(Hanging(but="good.test")) as resolver:
            hung = [seconds_until_given_up(resolver.addresses(f"{number}.test")) for number in range(100)]
            *given_up, found = await asyncio.gather(*hung, resolver.addresses("good.test"))
            assert set(given_up) == {LOOKUP_S}
            assert found == {"127.0.0.1"}

    run_virtually(story())


def test_two_who_ask_for_one_name_share_its_lookup():
    async def story():
        hanging = Hanging(but="good.test")
        async with SystemResolver(hanging) as resolver:
            both = await asyncio.gather(*[resolver.addresses("good.test") for _ in range(2)])
            assert both == [{"127.0.0.1"}] * 2
            assert hanging.lookups == ["good.test"]

    run_virtually(story())


HUNG = """
import asyncio, contextlib, socket, threading
from dispatcher.discovery import resolver
from dispatcher.discovery.dns import NameLookupError

async def main():
    async with resolver.SystemResolver() as names:
        with contextlib.suppress(NameLookupError):
            await names.addresses("a.test")

socket.getaddrinfo = lambda *_, **__: threading.Event().wait()
resolver.LOOKUP_S = 0.1
asyncio.run(main())
"""


def test_a_lookup_that_hangs_does_not_keep_the_process_from_its_end():
    assert subprocess.run([sys.executable, "-c", HUNG], check=False, timeout=20).returncode == 0


def test_closing_leaves_no_task_behind():
    async def story():
        async with SystemResolver(Hanging()) as resolver:
            await seconds_until_given_up(resolver.addresses("a.test"))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(story())


async def test_a_cancelled_lookup_ends_also_where_its_answer_comes_just_then(names, resolver):
    names.set(SRV, "SRV", "0 0 8000 a.vllm.test.")

    async def follow():
        while True:
            await resolver.services(SRV)

    for look in range(40):
        following = asyncio.create_task(follow())
        await asyncio.sleep(look * 0.0004)
        following.cancel()
        ended, _ = await asyncio.wait([following], timeout=5)
        assert ended, "the cancellation was lost"
