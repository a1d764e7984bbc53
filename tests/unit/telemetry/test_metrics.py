"""What the metrics say, and that they stay bounded and well-formed."""

import os
import shutil
import subprocess
import time
import timeit

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.model import (
    NO_TOKENS,
    AgainReason,
    ErrorCode,
    Outcome,
    Provenance,
    QueueDepth,
    Tokens,
    Verdict,
)
from dispatcher.pool.states import State
from dispatcher.telemetry.metrics import MODELS_MAX, Metrics

A, B = "http://a:8000", "http://b:8000"


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def metrics(registry):
    return Metrics(registry)


def outcome(*, code=None, model=None, tokens=NO_TOKENS):
    return Outcome(0, "row-0", code, tokens=tokens, provenance=Provenance(A, model, None, 1, 0.5))


def exercise(metrics):
    """Let everything happen once, on two servers."""
    for server in (A, B):
        metrics.server_state(server, "active")
        metrics.server_joined(server, lambda: 3, lambda: 64)
        metrics.attempt_ended(server, Verdict.SUCCESS, 1.5)
        metrics.server_evicted(server, "refused")
        metrics.server_readmitted(server)
        metrics.probe_ended(server, 0.02)
    metrics.outcomes_recorded([outcome(model="qwen", tokens=Tokens(10, 5))])
    metrics.outcomes_recorded([outcome(code=ErrorCode.POISON)])
    metrics.hedge_ended("won")
    metrics.asked_again(AgainReason.CUT)
    metrics.queue_depth(QueueDepth(1, 2, 3, 256, 512, 700))
    metrics.jobs_counted({"completed": 3}, 1, 2)
    metrics.hindered(queue=False, journal=True)
    metrics.nodes_counted({"active": 2, "silent": 1})
    metrics.leases_lost(1)
    metrics.journal_synced(0.004)
    metrics.event_loop_lagged(0.001)
    metrics.source_followed("file", lambda: True)
    metrics.waiting_for_servers(waiting=True)


def labelled(registry, label, value):
    return {
        sample.name
        for family in registry.collect()
        for sample in family.samples
        if sample.labels.get(label) == value
    }


def test_every_documented_series_is_exported(registry, metrics):
    exercise(metrics)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    found = {family.name: set(family.samples[0].labels) - {"le"} for family in families}
    assert {name: labels for name, labels in found.items() if not name.endswith("_created")} == {
        "dispatcher_server_state": {"server", "state"},
        "dispatcher_server_state_timestamp_seconds": {"server"},
        "dispatcher_server_in_flight": {"server"},
        "dispatcher_server_limit": {"server"},
        "dispatcher_attempts": {"server", "verdict"},
        "dispatcher_attempt_seconds": {"server"},
        "dispatcher_evictions": {"server", "reason"},
        "dispatcher_readmissions": {"server"},
        "dispatcher_probe_seconds": {"server"},
        "dispatcher_tokens": {"model", "kind"},
        "dispatcher_outcomes": {"result"},
        "dispatcher_poison": set(),
        "dispatcher_hedges": {"result"},
        "dispatcher_asked_again": {"reason"},
        "dispatcher_queue_requests": {"state"},
        "dispatcher_queue_shards": {"state"},
        "dispatcher_jobs": {"status"},
        "dispatcher_jobs_starving": set(),
        "dispatcher_jobs_late": set(),
        "dispatcher_obstacle": {"part"},
        "dispatcher_source_faulty": {"source"},
        "dispatcher_nodes": {"state"},
        "dispatcher_leases_lost": set(),
        "dispatcher_journal_sync_seconds": set(),
        "dispatcher_event_loop_lag_seconds": set(),
        "dispatcher_waiting_for_servers": set(),
        "dispatcher_build_info": {"version", "python", "role"},
    }


def test_events_are_counted_where_they_happened(registry, metrics):
    exercise(metrics)
    metrics.attempt_ended(A, Verdict.SUCCESS, 3000)
    metrics.attempt_ended(A, Verdict.OVERLOAD, 0.1)
    value = registry.get_sample_value
    assert value("dispatcher_attempts_total", {"server": A, "verdict": "success"}) == 2
    assert value("dispatcher_attempts_total", {"server": A, "verdict": "overload"}) == 1
    assert value("dispatcher_attempts_total", {"server": B, "verdict": "success"}) == 1
    assert value("dispatcher_attempt_seconds_count", {"server": A}) == 3
    assert value("dispatcher_attempt_seconds_bucket", {"server": A, "le": "1800.0"}) == 2
    assert value("dispatcher_attempt_seconds_bucket", {"server": A, "le": "3600.0"}) == 3
    assert value("dispatcher_evictions_total", {"server": A, "reason": "refused"}) == 1
    assert value("dispatcher_readmissions_total", {"server": A}) == 1
    assert value("dispatcher_server_limit", {"server": A}) == 64
    assert value("dispatcher_leases_lost_total") == 1


def test_a_server_is_in_one_state_at_a_time(registry, metrics):
    for state in ("joining", "verifying", "active", "evicted", "verifying"):
        metrics.server_state(A, state)
        of_a = [s for f in registry.collect() for s in f.samples if s.name == "dispatcher_server_state"]
        assert {sample.labels["state"]: sample.value for sample in of_a if sample.value} == {state: 1}
    assert {sample.labels["state"] for sample in of_a} == {"joining", "verifying", "active", "evicted"}


def test_requests_in_flight_are_read_at_the_scrape(registry, metrics):
    open_requests = [1, 2]
    metrics.server_joined(A, lambda: len(open_requests), lambda: 64)
    open_requests.append(3)
    assert registry.get_sample_value("dispatcher_server_in_flight", {"server": A}) == 3


def test_a_forgotten_server_leaves_no_series_and_others_are_kept(registry, metrics):
    exercise(metrics)
    before = labelled(registry, "server", B)
    metrics.forget_server(A)
    metrics.forget_server("http://never-seen")
    assert labelled(registry, "server", A) == set()
    assert labelled(registry, "server", B) == before


def test_a_forgotten_server_that_comes_back_starts_anew(registry, metrics):
    exercise(metrics)
    metrics.forget_server(A)
    metrics.server_state(A, "joining")
    metrics.attempt_ended(A, Verdict.SUCCESS, 1)
    assert registry.get_sample_value("dispatcher_attempts_total", {"server": A, "verdict": "success"}) == 1
    assert registry.get_sample_value("dispatcher_server_state", {"server": A, "state": "active"}) is None


def test_models_beyond_the_bound_are_counted_together(registry, metrics):
    for number in range(MODELS_MAX + 10):
        metrics.outcomes_recorded([outcome(model=f"model-{number}", tokens=Tokens(2, 1))])
    metrics.outcomes_recorded([outcome(model="model-0", tokens=Tokens(2, 1))])
    tokens = {
        (sample.labels["model"], sample.labels["kind"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "dispatcher_tokens_total"
    }
    assert len(tokens) == 2 * (MODELS_MAX + 1)
    assert tokens["other", "prompt"] == 20
    assert tokens["model-0", "completion"] == 2


def test_tokens_of_an_unnamed_model_are_counted_as_unknown(registry, metrics):
    unsent = Outcome(1, "row-1", ErrorCode.POISON)
    metrics.outcomes_recorded([outcome(tokens=Tokens(3, 4)), unsent])
    assert (
        registry.get_sample_value("dispatcher_tokens_total", {"model": "unknown", "kind": "completion"}) == 4
    )


def test_tokens_of_outcomes_recorded_together_add_up_by_model(registry, metrics):
    asked = [("m", Tokens(1, 10)), ("n", Tokens(2, 20)), ("m", Tokens(4, 40))]
    metrics.outcomes_recorded([outcome(model=model, tokens=tokens) for model, tokens in asked])
    found = {
        (model, kind): registry.get_sample_value("dispatcher_tokens_total", {"model": model, "kind": kind})
        for model in "mn"
        for kind in ("prompt", "completion")
    }
    assert found == {("m", "prompt"): 5, ("m", "completion"): 50, ("n", "prompt"): 2, ("n", "completion"): 20}


def test_outcomes_are_counted_by_error_code_or_as_success(registry, metrics):
    metrics.outcomes_recorded([outcome(), *(outcome(code=code) for code in ErrorCode for _ in range(2))])
    value = registry.get_sample_value
    assert value("dispatcher_outcomes_total", {"result": "success"}) == 1
    assert {value("dispatcher_outcomes_total", {"result": str(code)}) for code in ErrorCode} == {2}


def test_the_queue_s_depth_is_told_by_state(registry, metrics):
    metrics.queue_depth(QueueDepth(1, 2, 3, 10, 20, 30))
    for position, state in enumerate(("ready", "leased", "settled"), 1):
        assert registry.get_sample_value("dispatcher_queue_shards", {"state": state}) == position
        assert registry.get_sample_value("dispatcher_queue_requests", {"state": state}) == 10 * position


def test_jobs_are_counted_by_status(registry, metrics):
    for count in (3, 0):
        metrics.jobs_counted({"completed": count, "failed": 1}, count)
        assert registry.get_sample_value("dispatcher_jobs", {"status": "completed"}) == count
        assert registry.get_sample_value("dispatcher_jobs", {"status": "failed"}) == 1
        assert registry.get_sample_value("dispatcher_jobs_starving") == count
        assert registry.get_sample_value("dispatcher_jobs_late") == 0
    metrics.jobs_counted({}, 0, 2)
    assert registry.get_sample_value("dispatcher_jobs_late") == 2


def test_what_is_hindered_is_told_by_its_part_and_taken_back(registry, metrics):
    for queue, journal in ((True, False), (False, True), (False, False)):
        metrics.hindered(queue=queue, journal=journal)
        assert registry.get_sample_value("dispatcher_obstacle", {"part": "queue"}) == queue
        assert registry.get_sample_value("dispatcher_obstacle", {"part": "journal"}) == journal


def test_a_counter_of_known_kinds_begins_at_0_so_that_its_first_event_is_a_rise(registry, metrics):
    metrics.server_state(A, "joining")
    zeros = {
        (sample.name, *sample.labels.values())
        for family in registry.collect()
        for sample in family.samples
        if sample.name.endswith("_total") and sample.value == 0
    }
    kinds = {"success", *map(str, ErrorCode)}
    assert {("dispatcher_outcomes_total", kind) for kind in kinds} <= zeros
    assert {("dispatcher_evictions_total", A, reason) for reason in ("died", "failed")} <= zeros
    assert {("dispatcher_hedges_total", result) for result in ("won", "lost", "failed")} <= zeros
    assert ("dispatcher_poison_total",) in zeros
    assert ("dispatcher_leases_lost_total",) in zeros


def everything_happens(metrics, server):
    metrics.server_joined(server, lambda: 3, lambda: 64)
    metrics.probe_ended(server, 0.02)
    for state in State:
        metrics.server_state(server, state)
    for verdict in Verdict:
        metrics.attempt_ended(server, verdict, 1.0)


def test_the_series_of_a_thousand_servers_that_come_and_go_are_gone(registry, metrics):
    exercise(metrics)
    for server in (A, B):
        metrics.forget_server(server)
    before, of_one = len(generate_latest(registry)), set()
    for number in range(1000):
        server = f"http://gpu{number}:8000"
        metrics.server_state(server, "joining")
        metrics.server_evicted(server, "died")
        if number == 0:
            everything_happens(metrics, server)
            of_one = labelled(registry, "server", server)
        metrics.forget_server(server)
    assert len(of_one) > 8
    assert len(generate_latest(registry)) == before
    assert len(metrics._servers) == 0


def test_waiting_for_servers_is_told_and_taken_back(registry, metrics):
    for waiting in (True, False):
        metrics.waiting_for_servers(waiting=waiting)
        assert registry.get_sample_value("dispatcher_waiting_for_servers") == waiting


def test_two_dispatchers_in_one_process_share_nothing():
    one, two = CollectorRegistry(), CollectorRegistry()
    Metrics(one).leases_lost(1)
    Metrics(two)
    assert two.get_sample_value("dispatcher_leases_lost_total") == 0


def test_recording_an_attempt_costs_next_to_nothing(metrics):
    def record():
        metrics.attempt_ended(A, Verdict.SUCCESS, 20.0)

    best_s = min(timeit.repeat(record, timer=time.thread_time, number=2000, repeat=5)) / 2000
    assert best_s < 20e-6  # about 2 us on an idle core; what this catches is a lookup by label for each call


@pytest.mark.services
def test_promtool_finds_nothing_to_complain_about(registry, metrics):
    promtool = shutil.which("promtool")
    if promtool is None:
        assert os.environ.get("DISPATCHER_REQUIRE_SERVICES") != "1", "promtool is required"
        pytest.skip("promtool is not installed")
    exercise(metrics)
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=generate_latest(registry),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
