"""Suspects of several processes at the same servers."""

import pytest

from dispatcher.dispatch.neighbours import MEMORY_S, NEWS_S, TURN_S, Neighbours
from dispatcher.model import ServerId
from dispatcher.pool.limits import Portion

A, B = ServerId("http://a:8000"), ServerId("http://b:8000")


def neighbours(number, of):
    one = Neighbours()
    one.portion = Portion(number, of)
    return one


def test_a_process_alone_may_try_suspects_at_any_time():
    assert all(Neighbours().admit(A, moment / 10) for moment in range(100))


@pytest.mark.parametrize("of", [2, 3])
@pytest.mark.parametrize("server", [A, B])
def test_at_every_moment_one_process_may_try_a_suspect_and_each_has_its_turn(of, server):
    processes = [neighbours(number, of) for number in range(of)]
    turns = [[each.admit(server, moment / 20) for each in processes] for moment in range(20 * 20)]
    assert max(map(sum, turns)) == 1
    shares = [sum(turn) for turn in zip(*turns, strict=True)]
    assert min(shares) >= 20 * (20 / of - TURN_S) * (1 - NEWS_S / TURN_S)


def test_no_turn_is_used_while_anothers_suspect_is_there():
    one = neighbours(0, 2)
    at = next(moment / 20 for moment in range(200) if one.admit(A, moment / 20))
    one.heard([A], (), at)
    assert not one.admit(A, at)
    one.heard([], (), at)
    assert one.admit(A, at)


def test_a_death_where_two_processes_had_suspects_speaks_against_nobody():
    one = neighbours(0, 2)
    one.heard([A], {A, B}, 5.0)
    assert one.met(A, 5.0)
    assert not one.met(B, 5.0)
    one.look({A}, 50.0)
    assert one.met(A, 50.0 + MEMORY_S - 0.1)
    one.heard([], {A}, 51.0)
    assert one.met(A, 50.0 + MEMORY_S - 0.1)
    assert not one.met(A, 50.0 + MEMORY_S)
