"""The metrics of several processes as those of one."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from dispatcher.model import Verdict
from dispatcher.telemetry.metrics import Metrics
from dispatcher.telemetry.series import FleetFamilies, ServerFamilies
from dispatcher.telemetry.sums import GAUGES, Joined, series_of

A, B = "http://a:8000", "http://b:8000"


class Process:
    """A worker's metrics."""

    def __init__(self, in_flight=0, limit=4):
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.in_flight, self.limit = in_flight, limit

    def serves(self, *servers, state="active"):
        for server in servers:
            self.metrics.server_joined(server, lambda: self.in_flight, lambda: self.limit)
            self.metrics.server_state(server, state)
        return self

    def sends(self, server, number, seconds=1.5):
        for _ in range(number):
            self.metrics.attempt_ended(server, Verdict.SUCCESS, seconds)
        return self


@pytest.fixture
def own():
    return Process()


@pytest.fixture
def joined(own):
    return Joined(own.registry)


def tell(joined, **processes):
    for name, process in processes.items():
        joined.told(name, series_of(process.registry))


def begin(joined, *names):
    for name in names:
        joined.began(name)


def value(joined, name, **labels):
    found = [
        sample.value
        for family in joined.collect()
        for sample in family.samples
        if sample.name == f"dispatcher_{name}" and labels.items() <= sample.labels.items()
    ]
    assert len(found) < 2, "one series, one sample"
    return found[0] if found else None


def test_every_gauge_has_its_way_of_being_joined():
    registry = CollectorRegistry()
    ServerFamilies(registry)
    FleetFamilies(registry)
    assert {family.name for family in registry.collect() if family.type == "gauge"} == set(GAUGES)


def test_counters_and_histograms_add_up_and_so_do_permits(joined):
    begin(joined, "one", "two")
    one, two = Process(3).serves(A).sends(A, 5), Process(1).serves(A).sends(A, 2, 100.0)
    tell(joined, one=one, two=two)
    assert value(joined, "attempts_total", server=A) == 7
    assert value(joined, "attempt_seconds_count", server=A) == 7
    assert value(joined, "attempt_seconds_sum", server=A) == 5 * 1.5 + 2 * 100.0
    assert value(joined, "attempt_seconds_bucket", server=A, le="2.5") == 5
    assert value(joined, "server_in_flight", server=A) == 4
    assert value(joined, "server_limit", server=A) == 8


def test_what_holds_for_one_process_is_shown(joined):
    begin(joined, "one", "two")
    one, two = Process().serves(A), Process().serves(A, state="evicted")
    two.metrics.waiting_for_servers(waiting=True)
    tell(joined, one=one, two=two)
    assert value(joined, "server_state", server=A, state="active") == 1
    assert value(joined, "server_state", server=A, state="evicted") == 1
    assert value(joined, "waiting_for_servers") == 1
    assert value(joined, "build_info") == 1


def test_this_process_counts_as_well(joined, own):
    begin(joined, "one")
    tell(joined, one=Process())
    own.metrics.event_loop_lagged(0.1)
    assert value(joined, "event_loop_lag_seconds_count") == 1


def test_what_an_ended_process_has_counted_stays_and_its_gauges_go(joined):
    begin(joined, "one", "two")
    tell(joined, one=Process(3).serves(A).sends(A, 5), two=Process(1).serves(A).sends(A, 2))
    joined.ended("one")
    begin(joined, "three")
    assert value(joined, "attempts_total", server=A) == 7
    assert value(joined, "server_in_flight", server=A) == 1
    tell(joined, three=Process(2).serves(A).sends(A, 1))
    assert value(joined, "attempts_total", server=A) == 8
    assert value(joined, "attempt_seconds_bucket", server=A, le="+Inf") == 8
    assert value(joined, "server_in_flight", server=A) == 3


def test_no_counter_goes_back_while_all_are_replaced(joined):
    begin(joined, "one")
    tell(joined, one=Process().serves(A).sends(A, 5))
    joined.ended("one")
    assert value(joined, "attempts_total", server=A) == 5
    begin(joined, "two")
    assert value(joined, "attempts_total", server=A) == 5
    tell(joined, two=Process().serves(A))
    assert value(joined, "attempts_total", server=A) == 5


def test_a_server_that_no_process_knows_any_more_has_no_series(joined):
    begin(joined, "one", "two")
    tell(joined, one=Process().serves(A, B).sends(A, 5).sends(B, 3), two=Process().serves(A))
    joined.ended("one")
    assert value(joined, "attempts_total", server=B) is None
    assert value(joined, "attempts_total", server=A) == 5


def test_who_was_never_asked_or_has_ended_tells_nothing(joined):
    tell(joined, stranger=Process().serves(A).sends(A, 5))
    assert value(joined, "attempts_total", server=A) is None


def test_all_of_it_can_be_scraped(joined):
    begin(joined, "one", "two")
    tell(joined, one=Process().serves(A).sends(A, 1), two=Process().serves(B).sends(B, 2))
    registry = CollectorRegistry()
    registry.register(joined)
    lines = generate_latest(registry).decode().splitlines()
    samples = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
    assert len(samples) == len(set(samples))
    assert f'dispatcher_attempts_total{{server="{B}",verdict="success"}} 2.0' in lines
