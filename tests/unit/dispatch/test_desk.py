import time

import pytest

from dispatcher.dispatch import window as windows
from dispatcher.dispatch.window import WINDOW_BYTES_MAX, WINDOW_MIN
from dispatcher.model import Answer, Break, BreakKind, ErrorCode
from dispatcher.pool.states import State

OK = Answer(200, b"{}")
ERROR = Answer(500, b"")


# Assignment


def test_requests_go_out_in_input_order_to_the_largest_free_share(make_desk):
    bench = make_desk()
    bench.admit("a", limit=4)
    bench.admit("b", limit=8)
    bench.admit_shard(count=12)
    sent = bench.sent()
    assert [index for _, index in sent] == list(range(12))
    assert [name for name, _ in sent].count("a") == 4
    assert [name for name, _ in sent[:6]] == ["a", "b", "b", "a", "b", "b"]


def test_nothing_queues_at_a_server_beyond_its_limit(make_desk):
    bench = make_desk()
    bench.admit("a", "b")
    bench.admit_shard(count=100)
    assert len(bench.send()) == 16
    assert bench.send() == []
    assert len(bench.desk.backlog) == 84


def test_a_permit_that_came_back_is_used_at_once(make_desk):
    bench = make_desk()
    bench.admit("a")
    bench.admit_shard(count=10)
    attempt, *_ = bench.send()
    assert bench.end(attempt).outcome.index == 0
    assert bench.sent() == [("a", 8)]


def test_permits_that_came_up_are_found_by_a_look_everywhere(make_desk):
    bench = make_desk()
    (server,) = bench.admit("a", limit=16)
    bench.admit_shard(count=40)
    assert len(bench.send()) == 8
    assert bench.send() == []
    bench.time += 1
    assert bench.send() == []
    bench.desk.look_everywhere()
    assert len(bench.send()) == 8
    assert server.in_flight == 16


def test_a_server_that_left_rotation_is_given_nothing(make_desk):
    bench = make_desk()
    bench.admit("a", "b")
    bench.admit_shard(count=10)
    bench.end(bench.send()[0], Break(BreakKind.REFUSED))
    bench.desk.look_everywhere()
    bench.admit_shard(1, count=10)
    assert {name for name, _ in bench.sent()} <= {"b"}


def test_retries_go_before_new_work(make_desk):
    bench = make_desk()
    bench.admit("a", limit=2)
    bench.admit_shard(count=4)
    first, _ = bench.send()
    bench.end(first, Answer(503, b""), healthy=True)
    bench.time += 1
    bench.desk.look_everywhere()
    assert bench.sent() == [("a", 0)]


def test_a_doubtful_request_goes_elsewhere_while_there_is_an_elsewhere(make_desk):
    bench = make_desk()
    bench.admit("a", "b")
    bench.admit_shard(count=1)
    seen = []
    for _ in range(3):
        bench.time += 1
        (attempt,) = bench.send()
        seen.append(attempt.server.spec.id)
        ended = bench.end(attempt, ERROR)
    assert seen[:2] == ["a", "b"]
    assert ended.outcome.code is ErrorCode.SERVER_ERROR
    assert ended.outcome.provenance.attempts == 3


def test_an_elsewhere_that_is_busy_is_waited_for(make_desk):
    bench = make_desk()
    bench.admit("a", "b", limit=1)
    bench.admit_shard(count=2)
    on_a, on_b = bench.send()
    bench.end(on_a, ERROR)
    bench.time += 1
    assert bench.send() == []
    bench.end(on_b)
    assert bench.sent() == [("b", 0)]


def test_an_elsewhere_that_left_is_not_waited_for(make_desk):
    bench = make_desk()
    bench.admit("a", "b", limit=1)
    bench.admit_shard(count=2)
    on_a, on_b = bench.send()
    bench.end(on_a, ERROR)
    bench.end(on_b, Break(BreakKind.REFUSED))
    bench.time += 1
    assert bench.sent() == [("a", 0)]


def test_a_request_goes_only_where_its_model_is(make_desk):
    bench = make_desk()
    bench.admit("a", models={"m": "m"})
    bench.admit("b", models={"n": "n"})
    bench.admit_shard(0, model="n")
    bench.admit_shard(1, model="other")
    assert {name for name, _ in bench.sent()} == {"b"}
    assert bench.desk.unserved() == {"other"}
    assert not bench.desk.servable({"other"})


def test_nothing_is_sent_while_closed(make_desk):
    bench = make_desk()
    bench.admit("a")
    bench.admit_shard()
    bench.desk.closed = True
    assert bench.send() == []
    assert bench.desk.room() == 0


def test_no_more_is_open_than_the_ceiling(make_desk):
    bench = make_desk(ceiling=3)
    bench.admit("a", "b")
    bench.admit_shard(count=10)
    attempts = bench.send()
    assert len(attempts) == 3
    bench.end(attempts[0], Break(BreakKind.LOCAL))
    assert bench.ceiling.value == 1
    assert bench.send() == []


@pytest.mark.parametrize("kind", [BreakKind.AWAY, BreakKind.OFFLINE])
def test_a_fault_of_ours_that_fewer_requests_would_not_have_met_lowers_no_ceiling(make_desk, kind):
    bench = make_desk(ceiling=3)
    bench.admit("a")
    bench.admit_shard(count=10)
    bench.end(bench.send()[0], Break(kind))
    assert bench.ceiling.value == 3


# Room


def test_room_is_twice_the_permits_and_asked_for_again_below_three_quarters(make_desk):
    bench = make_desk()
    bench.admit(*(f"s{number}" for number in range(100)))
    assert bench.desk.room() == 2 * 800
    bench.admit_shard(count=1200)
    assert bench.desk.room() == 400
    bench.admit_shard(1, count=1)
    assert bench.desk.room() == 0


def test_room_counts_what_is_in_flight(make_desk):
    bench = make_desk()
    bench.admit("a")
    bench.admit_shard(count=WINDOW_MIN // 2)
    before = bench.desk.room()
    assert before == WINDOW_MIN // 2
    bench.send()
    assert bench.desk.room() == before


def test_a_fast_fleet_has_two_seconds_of_work_in_hand(make_desk):
    bench = make_desk()
    bench.admit("a")
    bench.admit_shard(count=WINDOW_MIN)
    began = bench.time
    while attempts := bench.send():
        for attempt in attempts:
            bench.end(attempt)
    assert bench.desk.room() == WINDOW_MIN
    bench.time = began + 1.0
    bench.desk.look_everywhere()
    assert bench.desk.room() == 2 * WINDOW_MIN


def test_there_is_room_before_there_are_servers(make_desk):
    assert make_desk().desk.room() == WINDOW_MIN


def test_large_bodies_leave_no_room(make_desk):
    bench = make_desk()
    lease = bench.admit_shard(count=1, size=WINDOW_BYTES_MAX)
    assert bench.desk.room() == 0
    bench.desk.drop([lease])
    assert bench.desk.room() == WINDOW_MIN


@pytest.mark.parametrize(
    ("bound", "value", "body"),
    [("UNRECORDED_MAX", 3, b"{}"), ("UNRECORDED_BYTES_MAX", 30, b"x" * 10)],
    ids=["count", "bytes"],
)
def test_nothing_is_sent_or_leased_while_recording_is_behind(make_desk, monkeypatch, bound, value, body):
    monkeypatch.setattr(windows, bound, value)
    bench = make_desk()
    bench.admit("a", limit=4)
    lease = bench.admit_shard(count=10)
    for attempt in bench.send()[:3]:
        bench.end(attempt, Answer(200, body))
    assert bench.send() == []
    assert bench.desk.room() == 0
    bench.desk.recorded(lease, 1)
    assert len(bench.send()) == 3
    assert bench.desk.room() > 0


# Ends


def test_an_outcome_tells_where_it_comes_from(make_desk):
    bench = make_desk()
    (server,) = bench.admit("a")
    server.version = "0.32.0"
    bench.admit_shard()
    attempt, *_ = bench.send()
    bench.time += 2.5
    outcome = bench.end(attempt).outcome
    assert (outcome.index, outcome.custom_id, outcome.code, outcome.body) == (0, "row-0", None, b"{}")
    made = outcome.provenance
    assert (made.server, made.model, made.server_version) == ("a", "m", "0.32.0")
    assert (made.attempts, made.seconds) == (1, 2.5)


def test_a_shard_is_complete_when_all_its_outcomes_are_durable(make_desk):
    bench = make_desk()
    bench.admit("a")
    lease = bench.admit_shard(count=4, finished=frozenset({1, 2}))
    for attempt in bench.send():
        bench.end(attempt)
    shard, outcomes = bench.desk.recorded(lease, 1)
    assert ([outcome.index for outcome in outcomes], shard.complete) == ([0], False)
    shard, outcomes = bench.desk.recorded(lease, 1)
    assert ([outcome.index for outcome in outcomes], shard.complete) == ([3], True)
    assert shard.tally.succeeded == 4
    assert bench.desk.unrecorded == 0


@pytest.mark.parametrize("given_up", ["the lease was lost", "the server was evicted"])
def test_an_attempt_that_we_closed_is_resent_and_is_no_evidence_against_its_server(make_desk, given_up):
    bench = make_desk()
    (server,) = bench.admit("a")
    bench.admit_shard()
    for attempt in bench.send():
        ended = bench.end(attempt, Break(BreakKind.GIVEN_UP, given_up))
        assert (ended.outcome, ended.effects) == (None, ())
    assert (server.state, server.record.failed) == (State.ACTIVE, 0)
    assert [index for _, index in bench.sent()] == [0, 1, 2, 3]


def test_an_attempt_that_ends_after_its_server_is_gone_leaves_no_metrics(make_desk):
    bench = make_desk()
    bench.admit("a")
    bench.admit_shard(count=1)
    (attempt,) = bench.send()
    bench.desk.release(attempt)
    bench.pool.set_members([])
    bench.desk.attempt_ended(attempt, Answer(503, b""), healthy=None)
    assert attempt.server.state is State.GONE
    assert not [
        sample
        for family in bench.registry.collect()
        for sample in family.samples
        if sample.labels.get("server") == "a"
    ]


def test_open_attempts_are_known_by_server_and_forgotten_with_their_last(make_desk):
    bench = make_desk()
    bench.admit("a", "b")
    bench.admit_shard()
    attempts = bench.send()
    assert sorted(bench.desk.open) == ["a", "b"]
    assert set(bench.desk.open_attempts()) == set(attempts)
    for attempt in attempts:
        bench.end(attempt)
    assert (bench.desk.open, bench.desk.in_flight) == ({}, 0)


# Lost leases


def test_a_lost_lease_takes_its_requests_attempts_and_outcomes_with_it(make_desk):
    bench = make_desk()
    bench.admit("a", limit=6)
    lost, kept = bench.admit_shard(0, count=8), bench.admit_shard(1, count=8)
    attempts = bench.send()
    bench.end(attempts[0])
    bench.end(attempts[1], Break(BreakKind.STALE))
    assert bench.desk.unrecorded == 1
    closed = bench.desk.drop([lost])
    assert closed == [attempt for attempt in bench.desk.open_attempts() if attempt.item.lease is lost]
    assert len(closed) == 4
    assert bench.desk.unrecorded == 0
    assert bench.end(attempts[2]).outcome is None
    assert bench.end(attempts[3], ERROR).outcome is None
    assert bench.desk.recorded(lost, 1) == (None, [])
    assert len(bench.desk.backlog) == 8
    assert bench.desk.drop([lost]) == []
    assert [shard.lease for shard in bench.desk.shards] == [kept]


def test_a_lease_of_another_epoch_is_not_the_one_in_hand(make_desk, make):
    bench = make_desk()
    bench.admit_shard(0, epoch=2)
    stale = make.lease(0, epoch=1)
    assert bench.desk.drop([stale]) == []
    assert bench.desk.recorded(stale, 1) == (None, [])
    assert len(bench.desk.backlog) == 4


# Size


def test_losing_every_lease_of_a_large_window_takes_no_square_of_time(make_desk):
    bench = make_desk()
    bench.admit("a")
    leases = [bench.admit_shard(number, count=50) for number in range(1000)]
    began = time.perf_counter()
    bench.desk.drop(leases)
    assert time.perf_counter() - began < 1.0
    assert len(bench.desk.backlog) == 0


def test_asking_for_room_does_not_ask_every_server(make_desk, monkeypatch):
    bench = make_desk()
    bench.admit("a")
    monkeypatch.setattr(bench.pool, "permits_total", lambda _now: pytest.fail("asked for each row"))
    assert bench.desk.room() == WINDOW_MIN


def test_an_attempt_that_was_closed_before_it_was_sent_costs_nothing(make_desk):
    bench = make_desk(free_resends_max=2)
    bench.admit("a")
    bench.admit_shard(count=1)
    for _ in range(20):
        (attempt,) = bench.send()
        attempt.given_up = Break(BreakKind.GIVEN_UP, "its server was evicted")
        assert bench.end(attempt, Break(BreakKind.GIVEN_UP)).outcome is None
    (attempt,) = bench.send()
    assert bench.end(attempt).outcome.provenance.attempts == 1


def test_what_a_large_server_died_of_is_not_left_to_a_small_one_alone(make_desk):
    bench = make_desk()
    bench.admit("small", limit=1)
    bench.admit("large", limit=8)
    bench.admit_shard(count=9)
    sent = bench.send()
    (busy,) = (attempt for attempt in sent if attempt.server.spec.id == "small")
    for attempt in sent:
        if attempt is not busy:
            attempt.item.died_at = ("large",)
            bench.end(attempt, Break(BreakKind.GIVEN_UP, "it died"))
    assert {name for name, _ in bench.sent()} == {"large"}


def test_while_another_server_has_room_it_is_given_what_the_first_one_died_of(make_desk):
    bench = make_desk()
    bench.admit("first")
    bench.admit_shard(count=1)
    (attempt,) = bench.send()
    attempt.item.died_at = ("first",)
    bench.end(attempt, Break(BreakKind.GIVEN_UP, "it died"))
    bench.admit("second")
    assert bench.sent() == [("second", 0)]
