"""A list of entries becomes a list of servers."""

from pydantic import SecretStr

from dispatcher.config import ServerEntry
from dispatcher.discovery.static import expand_servers


def entries(*given):
    return [ServerEntry.model_validate(entry) for entry in given]


def ids(*given):
    return [server.id for server in expand_servers(entries(*given))]


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
        assert (server.base_url, server.host_name) == (server.id, None)


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


def test_a_server_s_credentials_are_not_in_its_representation():
    entry = {"url": "http://a", "api_key": "hunter2", "headers": {"X": "hunter2"}}
    assert "hunter2" not in repr(expand_servers(entries(entry)))
