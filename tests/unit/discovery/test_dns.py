"""A name's servers: what is found, and what is kept while nothing sensible is."""

from contextlib import aclosing, suppress

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from dispatcher.config import DnsEntry
from dispatcher.discovery.dns import NameLookupError, names_of

ADDRESSES, SRV = "http://vllm.test:8000", "srv+http://_http._tcp.vllm.test"


class ScriptEndedError(Exception):
    """The watch has slept as often as the script has answers."""


class Script:
    """Answers one look after the other: records, or why there are none. It is the clock as well."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.asked = []
        self.slept_s = 0.0

    async def sleep(self, seconds):
        self.slept_s += seconds
        if not self._answers:
            raise ScriptEndedError

    async def addresses(self, host):
        return self._next("addresses", host)

    async def services(self, name):
        return self._next("services", name)

    def _next(self, question, name):
        self.asked.append((question, name))
        answer = self._answers.pop(0)
        if isinstance(answer, str):
            raise NameLookupError(answer)
        return answer


def named(entry, resolver, default_api_key=None):
    (name,) = names_of([DnsEntry.model_validate(entry)], resolver, default_api_key)
    return name


async def watched(entry, *answers):
    """The lists yielded while the script ran, as ids, and the log."""
    script, seen = Script(*answers), []
    with capture_logs() as logs, suppress(ScriptEndedError):
        async with aclosing(named(entry, script).watch(script, interval_s=5.0)) as lists:
            async for servers in lists:
                seen.append([server.id for server in servers])  # noqa: PERF401  # the end is an exception
    assert script.slept_s == 5.0 * len(answers)
    return seen, [entry["event"] for entry in logs]


async def first_list(entry, answer, default_api_key=None):
    script = Script(answer)
    async with aclosing(named(entry, script, default_api_key).watch(script)) as lists:
        return await anext(lists), script.asked


async def test_every_address_is_a_server_and_keeps_the_name_for_host_and_certificate():
    servers, asked = await first_list("https://vllm.test.:8443/team", {"10.0.0.7", "10.0.0.10"})
    assert [(server.id, server.base_url, server.host_name) for server in servers] == [
        ("https://10.0.0.10:8443/team", "https://10.0.0.10:8443/team", "vllm.test"),
        ("https://10.0.0.7:8443/team", "https://10.0.0.7:8443/team", "vllm.test"),
    ]
    assert asked == [("addresses", "vllm.test.")]


async def test_every_srv_record_is_a_server_under_the_name_that_it_holds():
    servers, asked = await first_list(f"{SRV}/v1", {("gpu2.test", 31000), ("gpu1.test", 80)})
    assert [(server.id, server.host_name) for server in servers] == [
        ("http://gpu1.test", None),
        ("http://gpu2.test:31000", None),
    ]
    assert asked == [("services", "_http._tcp.vllm.test")]


async def test_an_entrys_settings_hold_for_all_of_its_servers():
    entry = {"url": ADDRESSES, "api_key": "k", "headers": {"X-Team": "a"}, "limit": 64}
    servers, _ = await first_list(entry, {"10.0.0.1", "10.0.0.2"})
    assert [(each.api_key, each.headers, each.limit) for each in servers] == [
        ("k", (("X-Team", "a"),), 64)
    ] * 2


async def test_the_default_key_goes_to_servers_without_one():
    servers, _ = await first_list(ADDRESSES, {"10.0.0.1"}, SecretStr("default"))
    assert [server.api_key for server in servers] == ["default"]


async def test_ipv6_addresses_are_bracketed_and_count_only_where_there_is_no_ipv4_one():
    assert (await watched(ADDRESSES, {"2001:db8::2", "2001:db8::1"}))[0] == [
        ["http://[2001:db8::1]:8000", "http://[2001:db8::2]:8000"]
    ]
    assert (await watched(ADDRESSES, {"2001:db8::1", "10.0.0.1"}))[0] == [["http://10.0.0.1:8000"]]


async def test_the_first_list_comes_at_once_and_later_ones_only_when_they_differ():
    answers = [("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.1"), ("10.0.0.2",), ("10.0.0.2", "10.0.0.3")]
    seen, events = await watched(ADDRESSES, *answers)
    assert seen == [
        ["http://10.0.0.1:8000", "http://10.0.0.2:8000"],
        ["http://10.0.0.2:8000"],
        ["http://10.0.0.2:8000", "http://10.0.0.3:8000"],
    ]
    assert events == ["dns_name_changed"] * 3


FAILING = {
    "a failing lookup": "no answer within 5 s",
    "no such name": "there is no such name",
    "no record": [],
    "no usable record": [("", 8000), ("gpu1.test", 0)],
}


@pytest.mark.parametrize("failing", FAILING.values(), ids=FAILING)
async def test_while_there_is_nothing_sensible_the_last_list_stays_and_that_is_said_once(failing):
    good, other = [("gpu1.test", 8000)], [("gpu2.test", 8000)]
    seen, events = await watched(SRV, good, failing, failing, failing, good, failing, other)
    assert seen == [["http://gpu1.test:8000"], ["http://gpu2.test:8000"]]
    assert events == ["dns_name_changed", "dns_name_faulty", "dns_name_faulty", "dns_name_changed"]


async def test_at_the_start_it_is_no_error_that_a_name_has_no_servers():
    seen, events = await watched(ADDRESSES, "there is no such name", "there is no such name", {"10.0.0.1"})
    assert seen == [["http://10.0.0.1:8000"]]
    assert events == ["dns_name_faulty", "dns_name_changed"]


async def test_another_reason_is_said_again():
    _, events = await watched(ADDRESSES, "no answer", "no answer", "there is no such name", "no answer")
    assert events == ["dns_name_faulty"] * 3


async def test_records_that_cannot_be_used_are_left_out_and_counted():
    records = [("gpu1.test", 8000), ("gpu2.test", 0), ("", 80)]
    with capture_logs() as logs:
        servers, _ = await first_list(SRV, records)
    assert [server.id for server in servers] == ["http://gpu1.test:8000"]
    assert logs[0]["problem"] == "2 of its records have no host or no port"
    assert (await watched(SRV, records, records))[1] == ["dns_name_faulty", "dns_name_changed"]


def test_every_name_is_looked_up_once_however_often_it_is_listed():
    entries = ["http://vllm[1-2].test:80", "srv+http://vllm1.test", {"url": "http://VLLM2.test/v1"}]
    names = names_of([DnsEntry.model_validate(entry) for entry in entries], Script())
    assert [str(name.name) for name in names] == [
        "http://vllm1.test",
        "http://vllm2.test",
        "srv+http://vllm1.test",
    ]
