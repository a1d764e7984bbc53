import pytest

from dispatcher.api.rates import NO_RATES, Meter, Rates


@pytest.fixture
def meter():
    return Meter(0.0)


def work(meter, servers, seconds, *, begin=0, rows=2, tokens=50):
    """Every server answers so much in each second; returns what the looks added up to."""
    done = (0, 0)
    for second in range(begin + 1, begin + seconds + 1):
        for server in servers:
            server.record.succeeded += rows
            server.record.tokens += tokens
        new = meter.look(servers, float(second))
        done = (done[0] + new[0], done[1] + new[1])
    return done


def test_a_servers_rates_are_what_it_answered_in_the_last_half_minute(meter, server):
    one = server("a")
    work(meter, [one], 60)
    work(meter, [one], 60, begin=60, rows=8, tokens=400)
    assert meter.of(one) == Rates(8.0, 400.0)


def test_a_server_that_has_just_been_found_has_no_rates_yet(meter, server):
    one = server("a")
    assert meter.of(one) == NO_RATES
    meter.look([one], 5.0)
    assert meter.of(one) == NO_RATES


def test_a_server_that_stopped_answering_is_at_zero_half_a_minute_later(meter, server):
    one = server("a")
    work(meter, [one], 60)
    work(meter, [one], 34, begin=60, rows=0, tokens=0)
    assert meter.of(one) == Rates(0.0, 0.0)


def test_the_looks_add_up_to_all_that_was_answered(meter, server):
    assert work(meter, [server("a"), server("b")], 50) == (200, 5000)


def test_a_server_that_left_and_came_back_with_a_new_record_takes_nothing_away(meter, server):
    first = server("a")
    assert work(meter, [first], 10) == (20, 500)
    assert meter.look([], 11.0) == (0, 0)
    assert work(meter, [server("a")], 10, begin=11) == (20, 500)


def test_a_server_that_was_replaced_between_two_looks_is_counted_anew(meter, server):
    work(meter, [server("a")], 10)
    again = server("a")
    again.record.succeeded, again.record.tokens = 3, 60
    assert meter.look([again], 11.0) == (3, 60)


def test_what_a_server_had_answered_before_the_first_look_is_no_burst(meter, server):
    one = server("a")
    one.record.succeeded, one.record.tokens = 1000, 50_000
    assert meter.look([one], 1.0) == (1000, 50_000)
    work(meter, [one], 1, begin=1)
    assert meter.of(one) == Rates(2.0, 50.0)


def test_the_fleets_rates_include_what_servers_did_that_are_gone_since(meter, server):
    work(meter, [server("a"), server("b")], 15)
    work(meter, [server("a")], 15, begin=15)
    assert meter.of_all() == Rates(3.0, 75.0)
