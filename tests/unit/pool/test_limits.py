from random import Random

import pytest

from dispatcher.model import Telemetry
from dispatcher.pool.limits import (
    LIMIT_MAX,
    LIMIT_START,
    RAMP_START,
    UNMEASURED_MAX,
    FixedLimit,
    LearnedLimit,
    Portion,
)

LATE = 10_000.0
IDLE = Telemetry(waiting=0.0)


def permits(limit):
    return limit.permits(LATE)


def learned(value):
    """A limit that its server's KV cache set to this number."""
    limit = LearnedLimit()
    limit.measured(Telemetry(waiting=0.0, kv_max_concurrency=value), 0)
    return limit


@pytest.mark.parametrize(("after_s", "most"), [(0, 8), (0.5, 11), (1, 16), (4, 128), (5, 256), (1e9, 256)])
def test_an_admitted_server_starts_with_eight_permits_doubled_every_second(after_s, most):
    limit = LearnedLimit()
    limit.admitted(50.0)
    assert limit.permits(50.0 + after_s) == most


def test_a_server_that_comes_back_ramps_up_again():
    limit = LearnedLimit()
    assert permits(limit) == LIMIT_START
    limit.admitted(LATE)
    assert permits(limit) == RAMP_START


@pytest.mark.parametrize("value", [1, 5, 64])
def test_a_fixed_limit_wins_over_all_evidence_after_its_ramp(value):
    limit = FixedLimit(value)
    limit.admitted(50.0)
    assert limit.permits(50.0) == min(value, RAMP_START)
    limit.overloaded(0, 60.0, 60.0)
    limit.measured(Telemetry(waiting=1e6, preemptions_total=9.0, kv_max_concurrency=1.0), value)
    limit.measured(Telemetry(waiting=0.0, preemptions_total=99.0), value)
    limit.completed(permits(limit) - 1, LATE)
    assert permits(limit) == value


def test_the_first_telemetry_lowers_the_start_to_what_the_kv_cache_holds():
    assert permits(learned(37.5)) == 37


def test_a_kv_cache_that_holds_more_does_not_raise_the_start():
    assert permits(learned(5000.0)) == LIMIT_START


def test_a_kv_cache_that_holds_less_than_one_request_leaves_one_permit():
    assert permits(learned(0.2)) == 1


@pytest.mark.parametrize(("kv_usage", "grown"), [(0.0, 200), (0.4, 200), (0.41, 125), (None, 125)])
def test_the_limit_doubles_while_the_kv_cache_is_nearly_empty(kv_usage, grown):
    limit = learned(100.0)
    limit.measured(Telemetry(waiting=0.0, kv_usage=kv_usage), 100)
    assert permits(limit) == grown


def test_a_server_that_has_refused_for_load_is_not_doubled_until_it_is_admitted_again():
    limit = learned(100.0)
    limit.overloaded(50, 10.0, 11.0)
    before = permits(limit)
    limit.measured(Telemetry(waiting=0.0, kv_usage=0.0), before)
    assert permits(limit) == int(before * 1.25)
    limit.admitted(12.0)
    before = permits(limit)
    limit.measured(Telemetry(waiting=0.0, kv_usage=0.0), before)
    assert permits(limit) > before * 1.9


def test_the_limit_grows_by_a_quarter_while_it_is_used_and_nothing_waits():
    limit = learned(100.0)
    limit.measured(IDLE, 90)
    assert permits(limit) == 125


def test_the_limit_holds_while_it_is_not_used():
    limit = learned(100.0)
    limit.measured(IDLE, 89)
    assert permits(limit) == 100


def test_the_limit_holds_at_a_short_waiting_queue():
    limit = learned(100.0)
    for _ in range(5):
        limit.measured(Telemetry(waiting=10.0), 100)
    assert permits(limit) == 100


def test_the_limit_shrinks_at_a_long_waiting_queue():
    limit = learned(100.0)
    limit.measured(Telemetry(waiting=10.5), 100)
    assert permits(limit) == 90


def test_the_limit_shrinks_when_preemptions_rise_and_not_while_they_stand():
    limit = learned(100.0)
    limit.measured(Telemetry(waiting=1.0, preemptions_total=5.0), 0)
    limit.measured(Telemetry(waiting=1.0, preemptions_total=5.0), 0)
    assert permits(limit) == 100
    limit.measured(Telemetry(waiting=1.0, preemptions_total=6.0), 0)
    assert permits(limit) == 90


def test_preemptions_that_a_restart_set_back_are_no_rise():
    limit = learned(100.0)
    limit.measured(Telemetry(waiting=1.0, preemptions_total=50.0), 0)
    limit.measured(Telemetry(waiting=1.0, preemptions_total=0.0), 0)
    assert permits(limit) == 100


@pytest.mark.parametrize("telemetry", [Telemetry(), Telemetry(running=5.0, preemptions_total=7.0)])
def test_absent_figures_are_not_zero_and_change_nothing(telemetry):
    limit = learned(100.0)
    limit.measured(telemetry, 100)
    limit.measured(telemetry, 100)
    assert permits(limit) == 100


def test_growth_has_an_end():
    limit = learned(100.0)
    for _ in range(100):
        limit.measured(IDLE, permits(limit))
    assert permits(limit) == LIMIT_MAX


def test_shrinking_leaves_one_permit():
    limit = learned(100.0)
    for _ in range(100):
        limit.measured(Telemetry(waiting=1000.0), 1)
    assert permits(limit) == 1


@pytest.mark.parametrize("cuts", range(1, 45))
def test_a_limit_grows_again_from_wherever_it_was_cut_to(cuts):
    limit = learned(100.0)
    for _ in range(cuts):
        limit.measured(Telemetry(waiting=1000.0), 1)
    before = permits(limit)
    limit.measured(IDLE, before)
    assert permits(limit) > before


def test_an_overload_cuts_by_three_tenths():
    limit = LearnedLimit()
    limit.overloaded(255, 10.0, 11.0)
    assert permits(limit) == int(256 * 0.7)


def test_the_refusals_of_one_burst_cut_once():
    limit = LearnedLimit()
    for _ in range(50):
        limit.overloaded(255, 10.0, 11.0)
    assert permits(limit) == int(256 * 0.7)
    limit.overloaded(255, 11.5, 12.0)
    assert permits(limit) == int(256 * 0.7 * 0.7)


def test_an_overload_leaves_no_more_than_the_server_kept():
    limit = LearnedLimit()
    for kept in range(63, 7, -1):
        limit.overloaded(kept, 10.0, 11.0)
    assert permits(limit) == 8


def test_an_overload_with_nothing_else_in_flight_leaves_one_permit():
    limit = LearnedLimit()
    limit.overloaded(0, 10.0, 11.0)
    assert permits(limit) == 1


def test_refusals_settle_the_limit_near_what_the_server_takes():
    takes, limit, seen = 8, LearnedLimit(), []
    for second in range(200):
        sent = permits(limit)
        for refused in range(sent - takes):
            limit.overloaded(sent - 1 - refused, second, second + 0.1)
        for _ in range(min(sent, takes)):
            limit.completed(permits(limit) - 1, LATE)
        seen.append(permits(limit))
    assert set(seen[20:]) <= {5, 6, 7, 8, 9}
    assert 6.5 <= sum(seen[20:]) / 180 <= 8.5


def test_successes_win_back_no_more_than_the_first_limit():
    limit = LearnedLimit()
    limit.overloaded(100, 10.0, 11.0)
    for _ in range(100_000):
        limit.completed(permits(limit) - 1, LATE)
    assert permits(limit) == LIMIT_START


def test_successes_do_not_move_a_limit_that_telemetry_leads():
    limit = learned(10.0)
    for _ in range(1000):
        limit.completed(permits(limit) - 1, LATE)
    assert permits(limit) == 10


def kept_busy(limit, seconds):
    """It answers in a second, however many it holds."""
    for second in range(seconds):
        for number in range(held := limit.permits(LATE)):
            limit.completed(held - 1, LATE + second + number / held)
    return limit.permits(LATE)


@pytest.mark.parametrize("silence", ["no figures at all", "a page without the load"])
def test_a_server_that_tells_its_load_no_more_is_led_by_its_answers(silence):
    limit = learned(64.0)
    limit.measured(Telemetry(waiting=0), 0)
    limit.overloaded(14, 50.0, 50.0)
    assert kept_busy(limit, 600) == 14, "the figures lead"
    for _ in range(UNMEASURED_MAX):
        limit.unmeasured() if silence == "no figures at all" else limit.measured(Telemetry(), 14)
    assert kept_busy(limit, 600) > 28


def test_a_few_figures_that_do_not_come_change_nothing():
    limit = learned(64.0)
    for _ in range(3):
        limit.measured(Telemetry(waiting=0), 0)
        for _ in range(UNMEASURED_MAX - 1):
            limit.unmeasured()
    assert kept_busy(limit, 600) == 64


@pytest.mark.parametrize(("limit", "of"), [(8, 2), (9, 2), (64, 3), (65, 3), (5, 5), (100, 64)])
def test_the_parts_of_several_processes_add_up_to_a_fixed_limit(limit, of):
    for server in map("http://gpu{}:8000".format, range(20)):
        parts = [Portion(number, of).part(limit, server) for number in range(of)]
        assert sum(parts) == limit
        assert max(parts) - min(parts) <= 1


def test_what_cannot_be_divided_goes_to_other_processes_at_other_servers():
    servers = list(map("http://gpu{}:8000".format, range(40)))
    more = [sum(Portion(number, 2).part(3, server) for server in servers) for number in range(2)]
    assert sum(more) == 3 * len(servers)
    assert min(more) >= 50


def test_a_process_has_a_permit_even_where_there_are_fewer_than_processes():
    assert [Portion(number, 3).part(2, "a") for number in range(3)].count(1) == 3


def test_a_process_alone_has_it_all():
    assert Portion().part(7, "a") == 7


def test_processes_that_share_a_server_begin_with_its_cache_in_parts():
    limit = LearnedLimit(sharers=4)
    assert permits(limit) == LIMIT_START // 4
    limit.measured(Telemetry(waiting=0.0, kv_max_concurrency=40.0), 0)
    assert permits(limit) == 10


def test_they_take_a_waiting_queue_for_that_of_them_all():
    alone, sharing = LearnedLimit(), LearnedLimit(sharers=4)
    for limit in (alone, sharing):
        before = permits(limit)
        limit.measured(Telemetry(waiting=25.0), before)
        assert permits(limit) == before
        limit.measured(Telemetry(waiting=26.0), before)
        assert permits(limit) < before


@pytest.mark.parametrize("sharers", [2, 4])
@pytest.mark.parametrize("holds", [40, 200, 1000])
def test_together_they_learn_what_one_alone_would_in_about_equal_parts(sharers, holds):
    """A server that holds so many and lets the rest wait; each process looks at a time of its own."""
    random = Random(1)
    limits = [LearnedLimit(sharers=sharers) for _ in range(sharers)]
    for turn in range(400 * sharers):
        waiting = max(0.0, sum(map(permits, limits)) - holds) * random.uniform(0.8, 1.2)
        one = limits[turn % sharers]
        one.measured(Telemetry(waiting=float(int(waiting))), permits(one))
    shares = list(map(permits, limits))
    assert holds <= sum(shares) <= 1.15 * holds
    assert min(shares) >= 0.65 * holds / sharers


# Several nodes at one server


def load(running, waiting):
    return Telemetry(running=float(running), waiting=float(waiting))


def test_limits_of_two_nodes_rest_where_they_are_equal_and_three_percent_wait():
    limit = learned(100.0)
    for _ in range(20):
        limit.measured(load(194, 6), 100)
    assert permits(limit) == 100


def test_a_small_limit_beside_another_nodes_gains_and_a_large_one_loses_at_the_same_queue():
    small, large = learned(50.0), learned(150.0)
    small.measured(load(194, 6), 50)
    large.measured(load(194, 6), 150)
    assert (permits(small), permits(large)) == (53, 147)


def test_a_limit_beside_another_nodes_grows_in_twice_the_steps_where_nothing_waited_twice():
    limit = learned(100.0)
    limit.measured(load(200, 2), 100)
    assert permits(limit) == 104
    limit.measured(load(200, 0), 104)
    assert permits(limit) == 110
    limit.measured(load(200, 0), 110)
    assert permits(limit) == 122


def test_a_limit_that_is_not_used_does_not_grow_beside_another_nodes():
    limit = learned(100.0)
    limit.measured(load(200, 2), 50)
    assert permits(limit) == 98


def test_a_cut_beside_another_node_is_waited_for_before_the_next():
    limit = learned(100.0)
    for _ in range(5):
        limit.measured(load(100, 100), 100)
    assert permits(limit) == 70
    limit.measured(load(100, 70), 70)
    assert permits(limit) == 49


def test_preemptions_cut_a_limit_beside_another_nodes_as_well():
    limit = learned(100.0)
    limit.measured(Telemetry(waiting=6.0, running=194.0, preemptions_total=1.0), 100)
    limit.measured(Telemetry(waiting=6.0, running=194.0, preemptions_total=2.0), 100)
    assert permits(limit) == 90


@pytest.mark.parametrize("slots", [24, 100, 1000])
@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_whatever_they_start_from_the_limits_of_nodes_become_equal(slots, nodes):
    limits = [learned(1.0 + 200.0 * number / nodes) for number in range(nodes)]
    for _ in range(120):  # ten minutes of readings, one node after the other
        for limit in limits:
            held = sum(map(permits, limits))
            limit.measured(load(min(held, slots), max(0, held - slots)), permits(limit))
    assert max(map(permits, limits)) <= 1.5 * min(map(permits, limits))
    assert slots <= sum(map(permits, limits)) <= 1.25 * slots


def test_without_the_number_that_runs_a_node_counts_as_alone():
    limit = learned(100.0)
    limit.measured(Telemetry(waiting=10.5), 1)
    assert permits(limit) == 90
