"""A Service's servers over time: what is listed and watched, and what is kept while nothing can be asked."""

from contextlib import aclosing, asynccontextmanager, suppress
from random import Random

import pytest
from endpoint_slices import endpoint, slice_of
from pydantic import SecretStr
from structlog.testing import capture_logs

from dispatcher.config import KubernetesEntry
from dispatcher.discovery.kubernetes import EndpointSlices, KubernetesError, Listed, WatchEndedError
from dispatcher.discovery.slices import Bookmark, Changed, Removed


class ScriptEndedError(Exception):
    """Everything that was planned has happened."""


class Script:
    """An API server that does what is planned, step by step. It is the clock as well.

    A list is `{slices}`, a watch a list of changes, and either may be an error. A number within a watch is
    the time that passes.
    """

    namespace = "gpu"

    def __init__(self, *steps, lacks_namespace=False):
        self._steps = list(steps)
        self._lacks_namespace = lacks_namespace
        self.time = 0.0
        self.asked, self.slept = [], []
        self.open_sessions = 0

    def now(self):
        return self.time

    async def sleep(self, seconds):
        self.slept.append(round(seconds, 3))
        self.time += seconds

    @asynccontextmanager
    async def connect(self):
        self.open_sessions += 1
        try:
            yield self
        finally:
            self.open_sessions -= 1

    async def list_all(self, selector):
        version = 100 * (1 + sum(asked[0] == "list" for asked in self.asked))
        self.asked.append(("list", selector))
        return Listed(tuple(self._next()), str(version))

    @asynccontextmanager
    async def watch(self, selector, version):
        assert selector == self.asked[0][1]
        self.asked.append(("watch", version))
        steps = self._next()
        yield self._changes(steps)

    async def _changes(self, steps):
        for step in steps:
            match step:
                case int() | float():
                    self.time += step
                case Exception():
                    raise step
                case _:
                    yield step

    async def lacks_namespace(self):
        return self._lacks_namespace

    def _next(self):
        if not self._steps:
            raise ScriptEndedError
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


class Even:
    """No jitter: always the most."""

    def uniform(self, least, most):
        assert least == most / 2
        return most


async def followed(script, entry=None, default_api_key=None):
    """The lists that were yielded, and the log."""
    entry = KubernetesEntry.model_validate(entry or {"service": "vllm"})
    source, seen = EndpointSlices(entry, script, default_api_key, Even()), []
    with capture_logs() as logs, suppress(ScriptEndedError):
        async with aclosing(source.watch(script, interval_s=5.0)) as lists:
            async for servers in lists:
                seen.append(servers)  # noqa: PERF401  # the end is an exception
    assert script.open_sessions == 0
    return seen, logs, source


async def urls(script, **kwargs):
    seen, logs, _ = await followed(script, **kwargs)
    return [[server.id for server in servers] for servers in seen], [
        entry.get("problem", entry["event"]) for entry in logs
    ]


ONE, TWO = slice_of("a", endpoint("10.0.0.1", "p")), slice_of("b", endpoint("10.0.0.2", "q"), version="101")
FIRST, SECOND = "http://10.0.0.1:8000", "http://10.0.0.2:8000"


async def test_what_is_listed_comes_at_once_and_each_change_as_it_is_told():
    script = Script([ONE], [Changed(TWO), Removed("a", "102")])
    seen, events = await urls(script)
    assert seen == [[FIRST], [FIRST, SECOND], [SECOND]]
    assert events == ["kubernetes_changed"] * 3
    assert script.asked[:2] == [("list", "kubernetes.io/service-name=vllm"), ("watch", "100")]


async def test_what_changes_no_server_yields_nothing():
    again = slice_of("a", endpoint("10.0.0.1", "p", ready=False), version="103")
    assert await urls(Script([ONE], [Changed(again), Bookmark("104")])) == ([[FIRST]], ["kubernetes_changed"])


async def test_a_watch_that_ends_in_order_goes_on_from_where_it_was_without_another_list():
    script = Script([ONE], [60, Bookmark("150")], [60, Changed(TWO)], [60])
    await followed(script)
    versions = [version for what, version in script.asked if what == "watch"]
    assert versions == ["100", "150", "101", "101"]
    assert sum(what == "list" for what, _ in script.asked) == 1
    assert script.slept == [0.0, 0.0, 0.0]


async def test_watches_that_end_at_once_are_begun_no_more_often_than_every_five_seconds():
    script = Script([ONE], [], [2], [4.5])
    await followed(script)
    assert script.slept == [5.0, 3.0, 0.5]


async def test_everything_is_listed_again_every_five_minutes():
    """So a change that got lost on its way is found."""
    script = Script([ONE], [60], [60], [60], [60], [60], [ONE, TWO])
    seen, _ = await urls(script)
    assert seen == [[FIRST], [FIRST, SECOND]]
    assert script.slept[-1] == 1.0


BROKEN = WatchEndedError("Connection reset by peer")


async def test_a_watch_that_breaks_off_is_followed_by_a_list_and_is_no_fault():
    script = Script([ONE], [Changed(TWO), BROKEN], [TWO], [BROKEN])
    seen, events = await urls(script)
    assert seen == [[FIRST], [FIRST, SECOND], [SECOND]]
    changed = "kubernetes_changed"
    assert events == [changed, changed, "kubernetes_watch_ended", changed, "kubernetes_watch_ended"]
    assert [what for what, _ in script.asked] == ["list", "watch"] * 2 + ["list"]
    assert script.slept == [1.0, 2.0]


async def test_a_version_that_is_too_old_costs_a_list_whether_the_refusal_or_an_event_says_so():
    gone = WatchEndedError("too old resource version: 100 (900)")
    script = Script([ONE], gone, [ONE, TWO], [gone], [TWO])
    seen, _ = await urls(script)
    assert seen == [[FIRST], [FIRST, SECOND], [SECOND]]


UNREACHED = KubernetesError("is not reached: Connection refused")


async def test_a_lost_api_server_takes_no_server_away_and_is_said_once():
    script = Script([ONE], [UNREACHED], UNREACHED, UNREACHED, [ONE], [1, Changed(TWO), UNREACHED], UNREACHED)
    seen, logs, source = await followed(script)
    assert [len(servers) for servers in seen] == [1, 2]
    told = [(entry["problem"], entry["servers"]) for entry in logs if entry["event"] == "kubernetes_faulty"]
    assert told == [(str(UNREACHED), 1), (str(UNREACHED), 2)]
    assert source.problem == str(UNREACHED)


async def test_failures_are_tried_again_after_a_second_doubling_to_a_minute_until_something_is_told():
    failing = [UNREACHED] * 8
    script = Script(*failing, [ONE], [Bookmark("101"), UNREACHED], UNREACHED)
    await followed(script)
    assert script.slept == [1, 2, 4, 8, 16, 32, 60, 60, 1, 2]


async def test_an_accepted_watch_alone_does_not_end_the_waiting_but_the_complaint():
    """A proxy that takes every connection and breaks it is asked less and less often."""
    script = Script(UNREACHED, [ONE], [BROKEN], [ONE], [BROKEN])
    _, _, source = await followed(script)
    assert script.slept == [1, 2, 4]
    assert source.problem is None


async def test_watches_that_break_off_again_and_again_are_a_fault_until_one_tells_something():
    silent = WatchEndedError("no answer in time")
    script = Script(*([ONE], [silent]) * 4, [ONE], [Changed(TWO)])
    _, logs, source = await followed(script)
    told = [entry["problem"] for entry in logs if entry["event"] == "kubernetes_faulty"]
    assert told == ["breaks off every watch: no answer in time"]
    assert source.problem is None


async def test_an_orderly_end_of_a_watch_ends_that_fault_too():
    script = Script(*([ONE], [BROKEN]) * 3, [ONE], [60], [60])
    _, _, source = await followed(script)
    assert source.problem is None


async def test_an_api_server_that_names_a_time_is_not_asked_before_nor_waited_for_above_a_minute():
    script = Script(KubernetesError("answers 429", 7.0), KubernetesError("answers 503", 3600.0))
    await followed(script)
    assert script.slept == [7.0, 60.0]


async def test_retries_are_spread_over_the_upper_half_of_their_time():
    script = Script(*[UNREACHED] * 200)
    entry = KubernetesEntry(service="vllm")
    with capture_logs(), suppress(ScriptEndedError):
        await anext(EndpointSlices(entry, script, None, Random(1)).watch(script))
    late = script.slept[6:]
    assert 30 <= min(late) < 33
    assert 57 < max(late) <= 60


async def test_a_service_scaled_to_nothing_has_no_servers_and_that_is_no_fault():
    empty = slice_of("a", version="101")
    assert await urls(Script([ONE], [Changed(empty)])) == ([[FIRST], []], ["kubernetes_changed"] * 2)


async def test_where_nothing_matches_it_is_said_what_is_asked_for_and_where():
    _, events = await urls(Script([], []))
    selector = "kubernetes.io/service-name=vllm"
    assert events == [
        f"no EndpointSlice in namespace gpu matches {selector}: is there a Service vllm?",
    ]
    _, events = await urls(Script([], []), entry={"selector": "app=x"})
    assert events == [
        "no EndpointSlice in namespace gpu matches app=x: is there a Service with such labels?",
    ]


async def test_a_missing_namespace_is_named_and_the_job_begins_once_there_are_servers():
    seen, events = await urls(Script([], [Changed(ONE)], lacks_namespace=True))
    assert seen == [[FIRST]]
    assert events == ["there is no namespace gpu", "kubernetes_changed"]


async def test_a_problem_is_over_when_the_slices_can_be_used_again():
    portless = slice_of("a", endpoint("10.0.0.1", "p"), ports=(), version="101")
    seen, logs, source = await followed(Script([portless], [Changed(ONE)]))
    assert [len(servers) for servers in seen] == [1]
    assert [entry["event"] for entry in logs] == ["kubernetes_faulty", "kubernetes_changed"]
    assert source.problem is None


async def test_an_entrys_settings_hold_for_all_of_its_servers():
    entry = {"service": "vllm", "api_key": "k", "headers": {"X-Team": "a"}, "limit": 64}
    ((server,),), _, _ = await followed(Script([ONE]), entry, SecretStr("default"))
    assert (server.api_key, server.headers, server.limit) == ("k", (("X-Team", "a"),), 64)
    ((server,),), _, _ = await followed(Script([ONE]), default_api_key=SecretStr("default"))
    assert (server.api_key, server.host_name) == ("default", None)


async def test_https_goes_by_the_services_name_or_by_the_one_that_is_given():
    entry = {"service": "vllm", "scheme": "https"}
    ((server,),), _, _ = await followed(Script([ONE]), entry)
    assert (server.id, server.host_name) == ("https://10.0.0.1:8000", "vllm.gpu.svc")
    ((server,),), _, _ = await followed(Script([ONE]), entry | {"host_name": "llm.example"})
    assert server.host_name == "llm.example"


async def test_addresses_that_are_names_or_ipv6_make_urls_and_others_are_left_out():
    six = slice_of("six", endpoint("2001:db8::1"), kind="IPv6")
    names = slice_of("names", endpoint("gpu7.example"), endpoint("not a host"), kind="FQDN")
    seen, events = await urls(Script([six, names], []))
    assert seen == [["http://gpu7.example:8000", "http://[2001:db8::1]:8000"]]
    assert events == ["kubernetes_changed", "has an address that is none"]


@pytest.mark.parametrize("count", [10_000, 10_001])
async def test_more_servers_than_a_list_can_name_are_left_out_and_that_is_said(count):
    many = slice_of("a", *(endpoint(f"10.0.{n // 250}.{n % 250}") for n in range(count)))
    seen, _, source = await followed(Script([many], []))
    assert len(seen[0]) == 10_000
    assert source.problem == (
        None if count == 10_000 else "has more than 10000 servers: the others are left out"
    )
