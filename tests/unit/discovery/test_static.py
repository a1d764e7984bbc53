"""A list of entries becomes a list of servers."""

import pytest
from pydantic import SecretStr

from dispatcher.config import ServerEntry
from dispatcher.discovery.static import SERVERS_MAX, expand_servers
from dispatcher.errors import ConfigError


def entries(*given):
    return [ServerEntry.model_validate(entry) for entry in given]


def ids(*given):
    return [server.id for server in expand_servers(entries(*given))]


def faults_of(*given):
    with pytest.raises(ConfigError) as caught:
        expand_servers(entries(*given))
    return [(fault.where, fault.message) for fault in caught.value.faults]


def test_ranges_are_expanded_and_urls_brought_into_one_spelling():
    assert ids("gpu[01-02]:800[0-1]/v1/", "https://h/prefix/v1") == [
        "http://gpu01:8000",
        "http://gpu01:8001",
        "http://gpu02:8000",
        "http://gpu02:8001",
        "https://h/prefix",
    ]


def test_an_entry_s_settings_hold_for_its_whole_range():
    entry = {"url": "http://gpu[1-2]", "api_key": "k", "headers": {"X-Team": "a"}, "limit": 64}
    for server in expand_servers(entries(entry)):
        assert (server.api_key, server.headers, server.limit) == ("k", (("X-Team", "a"),), 64)
        assert server.base_url == server.id


def test_the_default_key_goes_to_entries_without_credentials_of_their_own():
    servers = expand_servers(
        entries(
            "http://a",
            {"url": "http://b", "api_key": "own"},
            {"url": "http://c", "headers": {"authorization": "Basic eA=="}},
        ),
        SecretStr("default"),
    )
    assert [server.api_key for server in servers] == ["default", "own", None]


def test_a_server_listed_twice_alike_is_one_server():
    assert ids("http://gpu[1-3]", "http://GPU2:80/v1/", "http://gpu[3-4]") == [
        "http://gpu1",
        "http://gpu2",
        "http://gpu3",
        "http://gpu4",
    ]


@pytest.mark.parametrize("other", [{"limit": 2}, {"api_key": "k"}, {"headers": {"A": "b"}}])
def test_a_server_listed_twice_with_different_settings_is_a_fault(other):
    faults = faults_of("http://gpu1", {"url": "http://gpu1/v1", **other})
    assert faults == [("servers[1]", "http://gpu1 is listed with other settings at servers[0]")]


def test_all_faulty_entries_are_reported_together():
    faults = faults_of("http://good", "nowhere", "ftp://x", "http://gpu[b-a]", "http://good/v1/models")
    assert [where for where, _ in faults] == ["servers[1]", "servers[2]", "servers[3]", "servers[4]"]


def test_entries_can_be_named_by_where_they_stand():
    with pytest.raises(ConfigError, match=r"^servers\.txt:7: must be http or https$"):
        expand_servers(entries("ftp://x"), places=["servers.txt:7"])


def test_a_list_of_the_largest_size_is_taken():
    assert len(ids(f"http://gpu[1-{SERVERS_MAX}]")) == SERVERS_MAX


def test_one_server_too_many_is_a_fault_whether_in_one_range_or_in_two():
    assert "more than" in faults_of(f"http://gpu[0-{SERVERS_MAX}]")[0][1]
    assert faults_of(f"http://gpu[1-{SERVERS_MAX}]", "http://gpu0")[0][0] == "servers[1]"


def test_a_server_s_credentials_are_not_in_its_representation():
    entry = {"url": "http://a", "api_key": "hunter2", "headers": {"X": "hunter2"}}
    assert "hunter2" not in repr(expand_servers(entries(entry)))
