import pytest

from dispatcher.dispatch.waiting import SAY_AFTER_S, SAY_EVERY_S, Wait, Waiting
from dispatcher.errors import ServersUnavailableError


def test_nothing_is_said_while_nothing_waits():
    waiting = Waiting(1.0)
    assert [waiting.look(set(), stuck=False, now=now) for now in (0.0, 50.0, 1e6)] == [None] * 3
    assert waiting.models == ()


def test_a_short_wait_is_not_worth_a_word():
    waiting = Waiting(None)
    assert waiting.look({"m"}, stuck=True, now=100.0) is None
    assert waiting.look({"m"}, stuck=True, now=100.0 + SAY_AFTER_S / 2) is None
    assert waiting.models == ("m",)


def test_what_requests_wait_for_is_told_in_words_while_they_do():
    waiting = Waiting(None)
    assert waiting.reason is None
    waiting.look({"m", None}, stuck=True, now=0.0)
    assert waiting.reason == "it waits: no server is in rotation for any model, m"
    waiting.look(set(), stuck=False, now=1.0)
    assert waiting.reason is None


def test_a_wait_is_said_every_ten_seconds_with_its_length():
    waiting, said = Waiting(None), []
    for quarter in range(int(4 * 3 * SAY_EVERY_S)):
        now = quarter / 4
        if (wait := waiting.look({"m", None}, stuck=True, now=now)) is not None:
            said.append((now, wait))
    assert said == [(now, Wait((None, "m"), now)) for now in (1.0, 11.0, 21.0)]


def test_a_wait_that_ended_is_not_counted_into_the_next():
    waiting = Waiting(None)
    waiting.look({"m"}, stuck=True, now=0.0)
    waiting.look(set(), stuck=False, now=50.0)
    assert waiting.look({"m"}, stuck=True, now=60.0) is None
    assert waiting.look({"m"}, stuck=True, now=65.0) == Wait(("m",), 5.0)


def test_a_stuck_run_ends_after_the_users_bound_and_not_before():
    waiting = Waiting(30.0)
    waiting.look({"m", None}, stuck=True, now=5.0)
    waiting.look({"m", None}, stuck=True, now=34.9)
    with pytest.raises(ServersUnavailableError, match="no server for any model, m within 30 s"):
        waiting.look({"m", None}, stuck=True, now=35.0)


def test_a_run_that_gets_on_with_other_rows_is_not_stuck_however_long_some_wait():
    waiting = Waiting(30.0)
    for now in range(1000):
        waiting.look({"m"}, stuck=False, now=float(now))


def test_being_stuck_is_counted_from_its_last_beginning():
    waiting = Waiting(30.0)
    waiting.look({"m"}, stuck=True, now=0.0)
    waiting.look({"m"}, stuck=False, now=29.0)
    waiting.look({"m"}, stuck=True, now=30.0)
    waiting.look({"m"}, stuck=True, now=59.0)
    with pytest.raises(ServersUnavailableError):
        waiting.look({"m"}, stuck=True, now=60.0)


def test_without_a_bound_a_run_waits_for_ever():
    waiting = Waiting(None)
    for day in range(400):
        waiting.look({"m"}, stuck=True, now=86_400.0 * day)
