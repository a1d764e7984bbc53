import pytest

from dispatcher.model import ErrorCode, Health, ProbeReport, Verdict
from dispatcher.pool.pulse import DYING_S, SILENCE_ANSWERS, SILENCE_S_MIN, wants_look

UP = ProbeReport(Health.UP)


@pytest.fixture
def at_work(fleet):
    """A server with 8 open requests, each answer of which takes two seconds: four a second."""
    server = fleet.admit()
    fleet.load(server, 8)
    fleet.end(server, Verdict.SUCCESS, sent_at=fleet.time - 2.0)
    return server


def look(fleet, server):
    server.looked_at = fleet.time
    fleet.pool.probed(server, UP)


def test_a_server_falls_silent_when_four_times_its_usual_pause_has_passed(fleet, at_work):
    usual_s = 2.0 / 8
    fleet.time += SILENCE_ANSWERS * usual_s - 0.01
    assert not wants_look(at_work, fleet.time)
    fleet.time += 0.02
    assert wants_look(at_work, fleet.time)


def test_however_fast_it_answers_half_a_second_is_no_silence(fleet, at_work):
    at_work.answer_s = 0.001
    assert not wants_look(at_work, fleet.time + SILENCE_S_MIN - 0.01)
    assert wants_look(at_work, fleet.time + SILENCE_S_MIN)


def test_a_silence_is_looked_at_once(fleet, at_work):
    fleet.time += 10
    look(fleet, at_work)
    assert not wants_look(at_work, fleet.time + 1000)
    fleet.end(at_work, Verdict.SUCCESS, sent_at=fleet.time - 2.0)
    assert wants_look(at_work, fleet.time + 10)


def test_a_server_that_holds_nothing_or_has_never_answered_is_not_silent(fleet):
    server = fleet.admit()
    fleet.end(server, Verdict.SUCCESS, sent_at=fleet.time - 2.0)
    assert not wants_look(server, fleet.time + 10)
    other = fleet.admit("other")
    fleet.load(other)
    assert not wants_look(other, fleet.time + 10)


@pytest.mark.parametrize("repeated", [False, True])
def test_after_a_plain_error_it_is_looked_at_when_a_dying_server_must_be_dead(fleet, repeated):
    server = fleet.admit()
    look(fleet, server)
    fleet.time += 1
    fleet.end(server, Verdict.DOUBTFUL, code=ErrorCode.SERVER_ERROR, repeated=repeated)
    assert not wants_look(server, fleet.time + DYING_S - 0.01)
    fleet.time += DYING_S
    assert wants_look(server, fleet.time)
    look(fleet, server)
    assert not wants_look(server, fleet.time + 1000)


def test_a_look_that_began_too_early_does_not_tell_whether_it_dies(fleet):
    server = fleet.admit()
    fleet.end(server, Verdict.DOUBTFUL, code=ErrorCode.SERVER_ERROR)
    fleet.time += DYING_S / 2
    look(fleet, server)
    assert wants_look(server, fleet.time + DYING_S)


def test_errors_that_come_on_and_on_do_not_put_the_look_off(fleet):
    server = fleet.admit()
    for _ in range(3):
        fleet.end(server, Verdict.DOUBTFUL, code=ErrorCode.SERVER_ERROR)
        fleet.time += DYING_S / 3
    assert wants_look(server, fleet.time)


def test_a_good_answer_to_a_later_request_settles_it_without_a_look(fleet):
    server = fleet.admit()
    fleet.load(server, 2)
    fleet.end(server, Verdict.DOUBTFUL, code=ErrorCode.SERVER_ERROR)
    fleet.time += DYING_S
    fleet.end(server, Verdict.SUCCESS, sent_at=fleet.time - 1.0)
    assert wants_look(server, fleet.time), "it was sent before the error"
    fleet.end(server, Verdict.SUCCESS, sent_at=fleet.time - 0.1)
    assert not wants_look(server, fleet.time)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_RESPONSE, ErrorCode.TIMEOUT])
def test_other_doubtful_ends_are_no_last_words(fleet, code):
    server = fleet.admit()
    fleet.end(server, Verdict.DOUBTFUL, code=code)
    assert not wants_look(server, fleet.time + 10)


def test_a_look_in_an_ordinary_pause_is_none_in_the_silence_that_follows(fleet, at_work):
    fleet.time += 0.1
    look(fleet, at_work)
    fleet.time += 10
    assert wants_look(at_work, fleet.time)
