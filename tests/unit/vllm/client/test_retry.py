"""What a fault costs a request, and how long it waits."""

import pytest

from dispatcher.model import Judgement, ServerId, Verdict
from dispatcher.vllm.client.retry import OVERLOADS_MAX, RESENDS_MAX, Course, Policy

HERE = ServerId("http://a:1")
POLICY = Policy(3, lambda: 1.0)
LOWEST = Policy(3, lambda: 0.0)


def pauses(verdict, *, others, policy=POLICY, most=50, **fields):
    """The pauses between the sends of a request that always ends so."""
    course, found = Course(), []
    for _ in range(most):
        pause_s = policy.pause_after(course, Judgement(verdict, **fields), HERE, others=others)
        if pause_s is None:
            return found
        found.append(pause_s)
    return found


def test_a_request_at_fault_is_sent_once():
    assert pauses(Verdict.REQUEST_FAULT, others=True) == []


@pytest.mark.parametrize("others", [True, False])
def test_a_doubtful_end_is_charged(others):
    assert pauses(Verdict.DOUBTFUL, others=others) == [0.25, 0.5]


def test_pauses_are_spread_down_to_their_half():
    assert pauses(Verdict.DOUBTFUL, others=True, policy=LOWEST) == [0.125, 0.25]


def test_a_broken_server_costs_nothing_while_there_is_another():
    assert pauses(Verdict.SERVER_FAULT, others=True) == [0.0] * 50


def test_the_last_server_is_tried_as_often_as_attempts_are_charged():
    assert pauses(Verdict.SERVER_FAULT, others=False) == [0.25, 0.5]


def test_a_server_that_does_not_match_is_not_asked_again():
    assert pauses(Verdict.MISMATCH, others=True) == [0.0] * 50
    assert pauses(Verdict.MISMATCH, others=False) == []


def test_an_overloaded_server_is_given_the_time_it_asks_for_and_more_each_time():
    found = pauses(Verdict.OVERLOAD, others=False, retry_after_s=2.0)
    assert found[:6] == [2.25, 2.5, 3.0, 4.0, 6.0, 10.0]
    assert set(found[6:]) == {10.0}
    assert len(found) == OVERLOADS_MAX


def test_where_there_is_another_server_a_busy_one_is_not_waited_for():
    assert pauses(Verdict.OVERLOAD, others=True, retry_after_s=600.0)[:3] == [0.25, 0.5, 1.0]


def test_a_busy_server_is_avoided_by_the_next_send_only():
    course = Course()
    POLICY.pause_after(course, Judgement(Verdict.OVERLOAD), HERE, others=True)
    assert course.avoided == {HERE}
    POLICY.pause_after(course, Judgement(Verdict.STALE_CONNECTION), ServerId("http://b:1"), others=True)
    assert course.avoided == set()


def test_a_stale_connection_is_replaced_at_once():
    assert pauses(Verdict.STALE_CONNECTION, others=False) == [0.0] * RESENDS_MAX


def test_a_fault_of_this_machine_waits_a_second():
    assert pauses(Verdict.LOCAL_FAULT, others=False) == [1.0] * RESENDS_MAX


@pytest.mark.parametrize("verdict", list(Verdict))
def test_only_servers_that_were_of_no_use_are_avoided(verdict):
    if verdict is Verdict.SUCCESS:
        with pytest.raises(AssertionError):
            POLICY.pause_after(Course(), Judgement(verdict), HERE, others=True)
        return
    course = Course()
    POLICY.pause_after(course, Judgement(verdict), HERE, others=True)
    avoided = {Verdict.SERVER_FAULT, Verdict.STALLED, Verdict.MISMATCH, Verdict.DOUBTFUL}
    assert (HERE in course.tried) == (verdict in avoided)
