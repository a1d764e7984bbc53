"""Answers that a job has no use for, though their server did what it was asked."""

import msgspec

from dispatcher.model import AgainReason, Answer, Break, BreakKind, ErrorCode, Tokens
from dispatcher.pool.states import State
from dispatcher.ports import Counted, Unfinished, Unusable

NO = Answer(400, b"")


def changed(request, number):
    return msgspec.structs.replace(request, body=b"%d" % number)


def refuse(times):
    """A review that has no use for the first answers, and asks with another body each time."""

    def review(request, judgement, asked):
        if asked.times < times:
            return Unusable("bad", changed(request, asked.times + 1), AgainReason.CUT)
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


def ask_further(request, judgement, asked):
    """A review that asks two more questions, and counts what came last with all that came before."""
    said = (*(asked.notes or ()), judgement.body)
    whole = b"+".join(said)
    if len(said) > 2:
        return Counted(whole)
    return Unfinished(changed(request, len(said)), whole, said)


def asked_again(bench, reason):
    return bench.registry.get_sample_value("dispatcher_asked_again_total", {"reason": reason})


def test_an_answer_that_raises_further_questions_counts_with_their_answers(make_desk):
    bench = make_desk(review=ask_further)
    bench.admit("a")
    bench.admit_shard(count=1)
    bodies = []
    for said in (b"x", b"y", b"z"):
        (attempt,) = bench.send()
        bodies.append(attempt.request.body)
        outcome = bench.end(attempt, Answer(200, said)).outcome
    assert bodies == [b"xx", b"1", b"2"]
    assert (outcome.body, outcome.code, outcome.provenance.attempts) == (b"x+y+z", None, 3)
    assert asked_again(bench, "unfinished") == 2


def test_a_further_question_that_gets_no_answer_costs_what_is_known_already_nothing(make_desk):
    bench = make_desk(review=ask_further)
    bench.tokens = Tokens(5, 1)
    bench.admit("a")
    bench.admit_shard(count=1)
    (attempt,) = bench.send()
    bench.end(attempt, Answer(200, b"x"))
    (attempt,) = bench.send()
    bench.tokens = Tokens()
    outcome = bench.end(attempt, NO).outcome
    assert (outcome.body, outcome.code, outcome.status, outcome.tokens) == (b"x", None, 200, Tokens(5, 1))


def test_a_row_is_charged_the_tokens_of_all_its_answers(make_desk):
    bench = make_desk(review=refuse(2))
    bench.admit("a")
    bench.admit_shard(count=1)
    for tokens in (Tokens(5, 8), Tokens(5, 16), Tokens(5, 3)):
        bench.tokens = tokens
        (attempt,) = bench.send()
        outcome = bench.end(attempt).outcome
    assert outcome.tokens == Tokens(15, 27)
    assert asked_again(bench, "cut") == 2


def copied(make_desk):
    """A row that is open at two servers, with its two attempts."""
    bench = make_desk(review=ask_further)
    bench.admit("a", "b")
    bench.admit_shard(count=1)
    (first,) = bench.send()
    bench.desk.queue_is_dry(dry=True)
    bench.time += 100
    for server in bench.pool.active():
        server.proven, server.answer_s, server.progress_at = True, 1.0, bench.time
    (copy,) = bench.desk.hedge()
    return bench, first, copy


def test_the_copy_of_an_answered_question_is_needless_once_another_one_stands(make_desk):
    bench, first, copy = copied(make_desk)
    ended = bench.end(copy, Answer(200, b"x"))
    assert (ended.outcome, ended.needless) == (None, first)
    bench.end(first, Break(BreakKind.GIVEN_UP))
    (second,) = bench.send()
    assert second.request.body == b"1"


def test_a_late_answer_to_the_question_before_is_no_answer_to_the_one_that_stands(make_desk):
    bench, first, copy = copied(make_desk)
    bench.end(first, Answer(200, b"x"))
    assert bench.end(copy, Answer(200, b"late")).outcome is None
    for said in (b"y", b"z"):
        (attempt,) = bench.send()
        outcome = bench.end(attempt, Answer(200, said)).outcome
    assert outcome.body == b"x+y+z"


def test_a_further_question_without_which_nothing_counts_fails_with_its_route(make_desk):
    bench = make_desk(review=lambda request, *_: Unfinished(changed(request, 1), None, "notes"))
    bench.admit("a")
    bench.admit_shard(count=1)
    (attempt,) = bench.send()
    bench.end(attempt)
    (attempt,) = bench.send()
    outcome = bench.end(attempt, NO).outcome
    assert (outcome.code, outcome.message) == (ErrorCode.INVALID_REQUEST, "/v1/chat/completions: HTTP 400")
