import pytest

from dispatcher.model import ServerId, ServerSpec
from dispatcher.vllm.headers import RETRY_AFTER_S_MAX, retry_after_s, server_headers

DATE = "Sun, 06 Nov 1994 08:49:37 GMT"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        ("1", 1),
        (" 7 ", 7),
        ("1.5", 1.5),
        ("999999", RETRY_AFTER_S_MAX),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10),
        ("Sunday, 06-Nov-94 08:49:47 GMT", 10),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0),
        ("Sun, 06 Nov 2044 08:49:37 GMT", RETRY_AFTER_S_MAX),
        (None, None),
        ("", None),
        ("-1", None),
        ("soon", None),
        ("1e9", None),
        ("nan", None),
        ("inf", None),
        ("1 2", None),
        ("Sun, 99 Nov 1994 08:49:47 GMT", None),
        ("Sun, 06 Nov 1994 08:49:47", None),
        ("١٢", None),
    ],
)
def test_every_form_of_retry_after(value, seconds):
    assert retry_after_s(value, DATE) == seconds


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_a_date_says_nothing_without_the_server_s_own_clock(date):
    assert retry_after_s("Sun, 06 Nov 1994 08:49:47 GMT", date) is None
    assert retry_after_s("3", date) == 3


def test_a_server_s_own_headers_win():
    server = ServerSpec(ServerId("s"), "http://s", api_key="k", headers=(("Authorization", "Basic x"),))
    assert server_headers(server)["Authorization"] == "Basic x"


@pytest.mark.parametrize("name", ["authorization", "user-agent", "ACCEPT", "accept-encoding", "host"])
def test_a_server_s_own_headers_win_in_any_case(name):
    server = ServerSpec(
        ServerId("s"), "http://10.0.0.7:80", api_key="k", headers=((name, "own"),), host_name="vllm.test"
    )
    sent = [text for header, text in server_headers(server).items() if header.lower() == name.lower()]
    assert sent == ["own"]


@pytest.mark.parametrize(
    ("base_url", "host"),
    [("http://10.0.0.7:8000/team", "vllm.test:8000"), ("https://[2001:db8::1]", "vllm.test")],
)
def test_a_server_found_by_a_name_is_asked_for_that_name(base_url, host):
    server = ServerSpec(ServerId("s"), base_url, host_name="vllm.test")
    assert server_headers(server)["Host"] == host
    assert "Host" not in server_headers(ServerSpec(ServerId("s"), base_url))


def test_without_a_key_there_is_no_authorization():
    assert "Authorization" not in server_headers(ServerSpec(ServerId("s"), "http://s"))
