from ipaddress import ip_network

import pytest

from dispatcher.config import ServerEntry
from dispatcher.discovery.dns import NameLookupError
from dispatcher.discovery.registration import (
    ForbiddenAddressError,
    RegistrationError,
    Registrations,
    is_allowed,
    locate,
)
from dispatcher.model import ServerId, ServerSpec


def spec(name, **fields):
    return ServerSpec(ServerId(f"http://{name}"), f"http://{name}", **fields)


def networks(*texts):
    return tuple(ip_network(text) for text in texts)


class Names:
    """Answers with these addresses, whatever the host."""

    def __init__(self, *addresses):
        self.addresses_of, self.asked = addresses, []

    async def addresses(self, host):
        self.asked.append(host)
        if not self.addresses_of:
            raise NameLookupError("there is no such name")
        return list(self.addresses_of)


@pytest.mark.parametrize(
    ("address", "allowed", "verdict"),
    [
        ("10.1.2.3", ["10.0.0.0/8"], True),
        ("11.1.2.3", ["10.0.0.0/8"], False),
        ("10.1.2.3", [], False),
        ("::ffff:10.1.2.3", ["10.0.0.0/8"], True),
        ("::ffff:10.1.2.3", ["::/0"], False),
        ("2001:db8::1", ["2001:db8::/32"], True),
        ("127.0.0.1", ["0.0.0.0/0"], False),
        ("127.0.0.1", ["127.0.0.0/8"], True),
        ("127.0.0.1", ["127.0.0.1/32"], True),
        ("::ffff:127.0.0.1", ["0.0.0.0/0"], False),
        ("::1", ["::/0"], False),
        ("::1", ["::1/128"], True),
        ("169.254.1.1", ["0.0.0.0/0"], False),
        ("169.254.1.1", ["169.254.0.0/16"], True),
        ("169.254.169.254", ["169.254.0.0/16"], False),
        ("169.254.169.254", ["169.254.169.254/32"], True),
        ("168.63.129.16", ["168.0.0.0/8"], False),
        ("fd00:ec2::254", ["fd00::/8"], False),
        ("fd00:ec2::253", ["fd00::/8"], True),
        ("224.0.0.1", ["0.0.0.0/0"], False),
        ("255.255.255.255", ["0.0.0.0/0"], False),
        ("2002:7f00:1::", ["::/0"], False),
        ("64:ff9b::7f00:1", ["::/0"], False),
        ("8.8.8.8", ["0.0.0.0/0"], True),
    ],
)
def test_an_address_is_allowed_in_a_network_that_means_it(address, allowed, verdict):
    assert is_allowed(address, networks(*allowed)) is verdict


async def test_an_address_is_taken_as_it_is_and_never_looked_up():
    names = Names("10.0.0.9")
    server = await locate(ServerEntry(url="10.0.0.1:8000", api_key="k"), networks("10.0.0.0/8"), names)
    assert (server.id, server.base_url, server.host_name) == (
        "http://10.0.0.1:8000",
        "http://10.0.0.1:8000",
        None,
    )
    assert server.api_key == "k"
    assert names.asked == []


async def test_of_a_names_addresses_an_allowed_one_is_used_the_same_each_time():
    names = Names("192.168.0.1", "2001:db8::1", "10.0.0.2", "10.0.0.1", "fe80::1%eth0")
    entry = ServerEntry(url="https://gpu1.example:8000/a/v1")
    for _ in range(2):
        server = await locate(entry, networks("10.0.0.0/8", "2001:db8::/32"), names)
        assert (server.id, server.base_url) == ("https://gpu1.example:8000/a", "https://10.0.0.1:8000/a")
        assert server.host_name == "gpu1.example"
    server = await locate(entry, networks("2001:db8::/32"), names)
    assert server.base_url == "https://[2001:db8::1]:8000/a"


async def test_a_name_that_leads_elsewhere_is_forbidden_and_the_address_is_not_told():
    with pytest.raises(ForbiddenAddressError) as caught:
        await locate(ServerEntry(url="http://inside:1"), networks("10.0.0.0/8"), Names("192.168.7.7"))
    assert "192.168" not in str(caught.value)


async def test_a_name_without_an_address_and_a_range_cannot_be_registered():
    with pytest.raises(RegistrationError, match="no address"):
        await locate(ServerEntry(url="http://nowhere:1"), networks("10.0.0.0/8"), Names())
    with pytest.raises(RegistrationError, match="must be one"):
        await locate(ServerEntry(url="http://10.0.0.[1-2]:1"), networks("10.0.0.0/8"), Names())


# How long


def test_a_registration_lasts_for_its_time_after_the_last_renewal():
    known = Registrations(30)
    assert known.renew(spec("a"), "t", now=0.0)
    assert not known.renew(spec("a"), "t", now=20.0)
    assert [known.expire(now, 100) for now in (30.1, 50.0, 50.1)] == [False, False, True]
    assert known.servers() == []


def test_a_changed_server_is_a_changed_list():
    known = Registrations(30)
    known.renew(spec("a"), "t", now=0.0)
    assert known.renew(spec("a", limit=3), "t", now=1.0)
    assert [server.limit for server in known.servers()] == [3]


def test_a_registration_is_its_tokens():
    known = Registrations(30)
    known.renew(spec("a"), "t", now=0.0)
    for act in (
        lambda: known.renew(spec("a"), "other", now=1.0),
        lambda: known.remove(ServerId("http://a"), "other"),
    ):
        with pytest.raises(RegistrationError, match="another token"):
            act()
    assert known.remove(ServerId("http://a"), "t")
    assert not known.remove(ServerId("http://a"), "t")
    assert known.renew(spec("a"), "other", now=2.0)


def test_there_are_no_more_than_one_list_can_name(monkeypatch):
    monkeypatch.setattr("dispatcher.discovery.registration.REGISTERED_MAX", 2)
    known = Registrations(30)
    known.renew(spec("a"), "t", 0.0)
    known.renew(spec("b"), "t", 0.0)
    with pytest.raises(RegistrationError, match="2 registered servers already"):
        known.renew(spec("c"), "t", 0.0)
    assert not known.renew(spec("b"), "t", 1.0)


def test_time_in_which_we_stood_still_is_nobodys_silence():
    known = Registrations(30)
    known.expire(0.0, 10)
    known.renew(spec("a"), "t", now=4.0)
    assert not known.expire(500.0, 10)
    assert not known.expire(505.0, 10)
    assert not known.expire(510.0, 10)
    assert [known.expire(float(now), 10) for now in range(515, 536, 5)] == [False, False, False, False, True]


class Clock:
    def __init__(self):
        self.time = 0.0

    def now(self):
        return self.time

    async def sleep(self, seconds):
        self.time += seconds


async def test_the_list_is_told_when_somebody_was_silent_for_too_long():
    known, clock = Registrations(12), Clock()
    known.renew(spec("a"), "t", now=0.0)
    known.renew(spec("b"), "t", now=4.0)
    watch = known.watch(clock, 5.0)
    assert await anext(watch) == [spec("b")]
    assert clock.time == 15.0
    assert await anext(watch) == []
    assert clock.time == 20.0
    await watch.aclose()
