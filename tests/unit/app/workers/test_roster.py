"""When a worker that has died is started again."""

import signal

from dispatcher.app.workers.roster import DEATHS_MAX, WELL_AFTER_S, Roster, described


def test_a_worker_that_dies_is_started_again_ever_later_and_given_up_at_last():
    roster = Roster()
    assert [roster.died(0, 1.0) for _ in range(DEATHS_MAX)] == [0.5, 1.0, 2.0, 4.0, None]


def test_workers_are_counted_each_by_itself():
    roster = Roster()
    assert [roster.died(number, 1.0) for number in (0, 1, 0, 1)] == [0.5, 0.5, 1.0, 1.0]


def test_a_worker_that_was_well_for_a_minute_begins_anew():
    roster = Roster()
    assert [roster.died(0, lived_s) for lived_s in (1.0, 1.0, WELL_AFTER_S, 1.0)] == [0.5, 1.0, 0.5, 1.0]


def test_an_end_is_told_in_words():
    assert "SIGKILL" in described(-signal.SIGKILL)
    assert "memory" in described(-signal.SIGKILL)
    assert "SIGSEGV" in described(-signal.SIGSEGV)
    assert "status 1" in described(1)
    assert "by 200" in described(-200)
