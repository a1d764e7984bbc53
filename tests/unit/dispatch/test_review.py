"""Answers that a job has no use for, though their server did what it was asked."""

import msgspec

from dispatcher.model import Answer, Break, BreakKind, ErrorCode
from dispatcher.pool.states import State
from dispatcher.ports import Unusable

NO = Answer(400, b"")


def refuse(times):
    """A review that has no use for the first answers, and asks with another body each time."""

    def review(request, judgement, asked):
        if asked < times:
            return Unusable("bad", msgspec.structs.replace(request, body=b"%d" % (asked + 1)))
        return None

    return review


def never(request, judgement, asked):
    return Unusable("bad", None)


def test_an_unusable_answer_is_asked_for_again_with_the_changed_request(make_desk):
    bench = make_desk(review=refuse(2), max_attempts=1)
    (server,) = bench.admit("a")
    bench.admit_shard(count=1)
    bodies = []
    for _ in range(2):
        (attempt,) = bench.send()
        bodies.append(attempt.item.request.body)
        assert bench.end(attempt).outcome is None
    (attempt,) = bench.send()
    bodies.append(attempt.item.request.body)
    outcome = bench.end(attempt).outcome
    assert (outcome.code, outcome.provenance.attempts) == (None, 3)
    assert bodies[1:] == [b"1", b"2"]
    assert (server.state, server.in_flight) == (State.ACTIVE, 0)


def test_an_answer_that_is_asked_for_no_more_is_an_error_that_keeps_it(make_desk):
    bench = make_desk(review=never)
    bench.admit("a")
    bench.admit_shard(count=1)
    (attempt,) = bench.send()
    outcome = bench.end(attempt).outcome
    assert (outcome.code, outcome.message) == (ErrorCode.INVALID_ANSWER, "bad")
    assert outcome.provenance.server == "a"


def test_a_changed_request_that_is_refused_ends_as_an_unusable_answer(make_desk):
    bench = make_desk(review=refuse(1))
    bench.admit("a")
    bench.admit_shard(count=1)
    (attempt,) = bench.send()
    bench.end(attempt)
    (attempt,) = bench.send()
    outcome = bench.end(attempt, NO).outcome
    assert outcome.code is ErrorCode.INVALID_ANSWER
    assert outcome.message.startswith("bad; asked again: ")


def test_a_servers_fault_is_no_answer_and_is_not_reviewed(make_desk):
    bench = make_desk(review=never)
    bench.admit("a", "b")
    bench.admit_shard(count=1)
    (attempt,) = bench.send()
    assert bench.end(attempt, Break(BreakKind.REFUSED)).outcome is None
    bench.time += 1
    bench.desk.look_everywhere()
    (again,) = bench.send()
    assert again.server is not attempt.server


def test_an_unusable_answer_waits_for_the_copy_that_is_still_open(make_desk):
    bench = make_desk(review=refuse(1))
    bench.admit("a", "b")
    bench.admit_shard(count=1)
    bench.desk.queue_is_dry(dry=True)
    (first,) = bench.send()
    first.item.running += 1  # its copy
    bench.end(first)
    assert bench.send() == []
