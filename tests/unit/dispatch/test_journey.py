import pytest

from dispatcher.dispatch.journey import SENDS_MAX, Journey, may_be_fatal
from dispatcher.model import Answer, Break, BreakKind, Judgement, Request, Verdict
from dispatcher.vllm.verdicts import judge

ASKED = Request(0, "", "/v1/chat/completions", "m", b"{}")
DEAD = b'{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause."}}'


def is_fatal(ending, healthy=None):
    return may_be_fatal(ending, judge(ending, ASKED, None, healthy=healthy))


@pytest.mark.parametrize(
    "ending",
    [
        Break(BreakKind.RESET),
        Break(BreakKind.STALE),
        Break(BreakKind.TRUNCATED),
        Break(BreakKind.GIVEN_UP),
        Break(BreakKind.SILENT),
        Answer(500, DEAD),
        Answer(500, b"Internal Server Error"),
        Answer(502, b"<html>"),
        Answer(503, b"upstream connect error or disconnect/reset before headers"),
    ],
    ids=str,
)
def test_an_ending_that_may_be_a_servers_last_is_told(ending):
    assert is_fatal(ending)


@pytest.mark.parametrize(
    "ending",
    [
        Break(BreakKind.REFUSED),
        Break(BreakKind.UNRESOLVED),
        Break(BreakKind.TLS),
        Break(BreakKind.CONNECT_TIMED_OUT),
        Break(BreakKind.LOCAL),
        Break(BreakKind.OFFLINE),
        Answer(429, b""),
        Answer(404, b'{"error":{"message":"no","type":"NotFoundError","param":"model"}}'),
        Answer(400, b'{"error":{"message":"no","param":"n"}}'),
    ],
    ids=str,
)
def test_a_server_that_was_not_reached_or_has_answered_is_not_lost(ending):
    assert not is_fatal(ending)


def test_a_server_that_is_full_and_well_is_not_lost():
    assert not is_fatal(Answer(503, b""), healthy=True)


def ended(journey, server, kind=BreakKind.RESET):
    ending = Break(kind)
    judgement = judge(ending, ASKED, None)
    journey.ended(server, judgement.verdict, lost=may_be_fatal(ending, judgement))
    return journey.goes_on()


def test_two_servers_are_the_most_that_one_request_may_end():
    journey = Journey()
    assert ended(journey, "a")
    assert not journey.is_perilous
    assert not ended(journey, "b")
    assert journey.is_perilous


def test_servers_that_were_not_reached_do_not_count_as_lost():
    journey = Journey()
    assert ended(journey, "a", BreakKind.REFUSED)
    assert ended(journey, "b")
    assert not ended(journey, "c", BreakKind.REFUSED)
    assert journey.tried == ("a", "b", "c")
    assert not journey.is_perilous


def test_one_server_that_dies_is_one_however_many_of_its_connections_break():
    journey = Journey()
    assert ended(journey, "a", BreakKind.STALE)
    assert ended(journey, "a")
    assert not journey.is_perilous
    assert journey.tried == ("a",)


def test_a_stale_connection_counts_as_a_server_that_may_be_lost():
    journey = Journey()
    assert ended(journey, "a", BreakKind.STALE)
    assert not ended(journey, "b", BreakKind.STALE)


def test_stale_connections_to_one_server_end_too():
    journey = Journey()
    assert [ended(journey, "a", BreakKind.STALE) for _ in range(SENDS_MAX)] == [True] * (SENDS_MAX - 1) + [
        False
    ]


def test_a_good_answer_loses_nothing():
    assert not may_be_fatal(Answer(200, b"{}"), Judgement(Verdict.SUCCESS))
