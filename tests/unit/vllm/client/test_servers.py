"""Which server is next."""

from collections import Counter

import pytest

from dispatcher import ConfigError
from dispatcher.model import Verdict
from dispatcher.vllm.client.servers import LeastOutstanding, parse_servers

URLS = ("http://a:1", "http://b:1", "http://c:1")


class Choice:
    """Three servers at a time of our own."""

    def __init__(self):
        self.at = 0.0
        self.servers = LeastOutstanding(parse_servers(URLS, None, {}), lambda: self.at)

    async def take(self, *avoid):
        return await self.servers.take(avoid)

    async def ends(self, url, verdict):
        """One request at this server ends so."""
        server = await self.take(*(other for other in URLS if other != url))
        assert server.id == url
        self.servers.give_back(server, verdict)


@pytest.fixture
def choice():
    return Choice()


async def test_the_server_with_the_fewest_outstanding_is_taken(choice):
    taken = [await choice.take() for _ in range(7)]
    assert [server.id for server in taken] == [*URLS, *URLS, URLS[0]]
    choice.servers.give_back(taken[1], Verdict.SUCCESS)
    choice.servers.give_back(taken[4], Verdict.SUCCESS)
    assert [(await choice.take()).id for _ in range(2)] == [URLS[1], URLS[1]]


async def test_one_request_after_another_goes_round(choice):
    seen = Counter()
    for _ in range(9):
        server = await choice.take()
        seen[server.id] += 1
        choice.servers.give_back(server, Verdict.SUCCESS)
    assert set(seen.values()) == {3}


async def test_a_server_to_avoid_is_taken_only_where_there_is_no_other(choice):
    assert (await choice.take(*URLS[:2])).id == URLS[2]
    assert (await choice.take(*URLS)).id in URLS


async def test_a_failed_server_is_passed_over_for_twice_as_long_each_time(choice):
    for aside_s in (1, 2, 4, 8, 16, 32, 60, 60):
        await choice.ends(URLS[0], Verdict.SERVER_FAULT)
        choice.at += aside_s - 0.01
        assert {(await choice.take()).id for _ in range(30)} == set(URLS[1:])
        choice.at += 0.01
        server = await choice.take()
        assert server.id == URLS[0]
        choice.servers.give_back(server, None)


async def test_a_success_ends_that(choice):
    for _ in range(5):
        await choice.ends(URLS[0], Verdict.MISMATCH)
    await choice.ends(URLS[0], Verdict.SUCCESS)
    assert URLS[0] in {(await choice.take()).id for _ in range(9)}


@pytest.mark.parametrize("verdict", [Verdict.OVERLOAD, Verdict.DOUBTFUL, Verdict.REQUEST_FAULT, None])
async def test_what_is_not_its_fault_puts_no_server_aside(choice, verdict):
    await choice.ends(URLS[0], verdict)
    assert {(await choice.take()).id for _ in range(9)} == set(URLS)


async def test_where_all_have_failed_they_are_taken_nevertheless(choice):
    for url in URLS:
        await choice.ends(url, Verdict.SERVER_FAULT)
    assert {(await choice.take()).id for _ in range(9)} == set(URLS)


def test_urls_are_read_as_in_the_configuration():
    servers = parse_servers(["gpu[1-2]:8000", "https://h/prefix/v1/"], " key ", {"X-Team": "us"})
    assert [server.base_url for server in servers] == [
        "http://gpu1:8000",
        "http://gpu2:8000",
        "https://h/prefix",
    ]
    assert {server.api_key for server in servers} == {"key"}
    assert {server.headers for server in servers} == {(("X-Team", "us"),)}


def test_a_url_listed_twice_is_one_server():
    assert len(parse_servers(["http://a:1", "http://a:1/v1"], None, {})) == 1


def test_every_fault_of_the_servers_is_named_at_once_and_no_key_is_repeated():
    with pytest.raises(ConfigError) as caught:
        parse_servers(["ftp://x", "http://ok:1", "http://u:secret@h"], None, {})
    assert [fault.where for fault in caught.value.faults] == ["base_url[0]", "base_url[2]"]
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="api_key") as caught:
        parse_servers("http://a:1", "two words", {})
    assert "two words" not in str(caught.value)
    with pytest.raises(ConfigError, match="at least one"):
        parse_servers([], None, {})
