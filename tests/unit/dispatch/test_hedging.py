"""Copies of old requests on idle servers at the end of a job."""

import asyncio

import pytest

from dispatcher.dispatch.hedging import OVERDUE
from dispatcher.dispatch.hints import tokens_max
from dispatcher.model import Answer, Break, BreakKind, ErrorCode, Request

OK = Answer(200, b"{}")
ERROR = Answer(500, b"")


@pytest.fixture
def end_of_job(make_desk):
    """A desk whose servers have answered in `usual_s` each, with `left` requests open at the first one."""

    def make(left=2, usual_s=(1.0, 1.0), **settings):
        bench = make_desk(**settings)
        names = [chr(ord("a") + place) for place in range(len(usual_s))]
        for place, (name, seconds) in enumerate(zip(names, usual_s, strict=True)):
            bench.admit(name)
            bench.admit_shard(number=place, count=1)
            (attempt,) = bench.send()
            assert attempt.server.spec.id == name
            bench.time += seconds
            bench.end(attempt)
            block(bench, name)
        bench.pool.servers["a"].blocked_until = 0.0
        bench.admit_shard(number=1000 // max(1, left), count=left)
        bench.desk.look_everywhere()
        opened = bench.send()
        assert {attempt.server.spec.id for attempt in opened} == {"a"}
        for name in names:
            bench.pool.servers[name].blocked_until = 0.0
        bench.desk.queue_is_dry(dry=True)
        return bench, opened

    def block(bench, name):
        bench.pool.servers[name].blocked_until = bench.time + 1000.0

    return make


def hedged(bench, after_s=0.0, *, getting_on=True):
    bench.time += after_s
    if getting_on:
        bench.pool.servers["a"].progress_at = bench.time
    return list(bench.desk.hedge())


def copies_counted(bench):
    found = {
        result: bench.registry.get_sample_value("dispatcher_hedges_total", {"result": result})
        for result in ("won", "lost", "failed")
    }
    return {result: count for result, count in found.items() if count}


def test_a_request_far_beyond_the_usual_age_is_copied_to_an_idle_server(end_of_job):
    bench, opened = end_of_job()
    assert hedged(bench, OVERDUE - 0.1) == []
    (copy,) = hedged(bench, 0.2)
    assert (copy.server.spec.id, copy.item) == ("b", opened[0].item)


def test_overdue_requests_are_copied_to_a_server_one_at_a_time(end_of_job):
    bench, opened = end_of_job()
    (copy,) = hedged(bench, 10.0)
    assert hedged(bench, 10.0) == []
    bench.end(copy)
    assert [copy.item for copy in hedged(bench)] == [opened[1].item]


@pytest.mark.parametrize("usual_s", [(40.0, 10.0), (1.0, 1.0)])
def test_what_waits_at_a_server_that_has_stopped_getting_on_is_not_copied(end_of_job, usual_s):
    bench, _ = end_of_job(usual_s=usual_s)
    bench.time += 3.0
    bench.pool.servers["a"].progress_at = bench.time
    assert hedged(bench, 4.0, getting_on=False) == []
    assert len(hedged(bench)) >= 1


def test_a_young_request_is_copied_to_a_server_that_answers_much_faster(end_of_job):
    bench, opened = end_of_job(usual_s=(40.0, 10.0))
    assert [copy.item for copy in hedged(bench, 1.0)] == [each.item for each in opened]


def test_none_is_copied_to_a_server_that_is_hardly_faster(end_of_job):
    bench, _ = end_of_job(usual_s=(40.0, 30.0))
    assert [hedged(bench, 10.0) for _ in range(15)] == [[]] * 15


def test_a_request_is_copied_once_in_its_life(end_of_job):
    bench, (attempt,) = end_of_job(left=1, usual_s=(1.0, 1.0, 1.0))
    (copy,) = hedged(bench, 10.0)
    assert hedged(bench, 10.0) == []
    bench.end(copy, Break(BreakKind.REFUSED))
    assert hedged(bench, 10.0) == []
    bench.end(attempt, Break(BreakKind.TIMED_OUT))
    bench.time += 2.0
    bench.desk.look_everywhere()
    assert len(bench.send()) == 1
    assert hedged(bench, 100.0) == []


def test_nothing_is_copied_while_the_queue_has_more(end_of_job):
    bench, _ = end_of_job()
    bench.desk.queue_is_dry(dry=False)
    assert hedged(bench, 1000.0) == []


def test_nothing_is_copied_while_other_work_is_ready(end_of_job):
    bench, _ = end_of_job()
    bench.admit_shard(number=77, count=1, model="another")
    assert hedged(bench, 1000.0) == []


def test_nothing_is_copied_where_the_user_wants_none(end_of_job):
    bench, _ = end_of_job(hedge=False)
    assert hedged(bench, 1000.0) == []


def test_nothing_is_copied_once_the_node_drains(end_of_job):
    bench, _ = end_of_job()
    bench.desk.closed = True
    assert hedged(bench, 1000.0) == []


def test_a_server_that_is_busy_or_has_answered_nothing_gets_no_copy(end_of_job):
    bench, _ = end_of_job()
    busy = bench.pool.servers["b"]
    busy.in_flight = 5
    bench.admit("c")
    assert hedged(bench, 1000.0) == []
    busy.in_flight = 0
    assert {copy.server.spec.id for copy in hedged(bench)} == {"b"}


def test_a_server_that_lacks_the_model_gets_no_copy(end_of_job):
    bench, _ = end_of_job()
    bench.pool.servers["b"].models = {"other": "other"}
    assert hedged(bench, 1000.0) == []


def test_copies_end_where_the_idle_server_is_half_full(end_of_job):
    bench, _ = end_of_job(left=8, usual_s=(40.0, 10.0))
    copies = hedged(bench, 1.0)
    assert len(copies) == 5
    assert bench.pool.servers["b"].free_share(bench.time) < 0.5


def test_a_suspect_is_never_copied(end_of_job):
    bench, (attempt, other) = end_of_job()
    attempt.item.accused_at = ("x",)
    assert [copy.item for copy in hedged(bench, 10.0)] == [other.item]


@pytest.mark.parametrize(("charged", "resends", "copied"), [(1, 8, 1), (2, 0, 0), (0, 9, 0)])
def test_a_request_whose_next_fault_could_be_its_last_is_not_copied(end_of_job, charged, resends, copied):
    bench, (attempt,) = end_of_job(left=1)
    attempt.item.charged, attempt.item.resends = charged, resends
    assert len(hedged(bench, 10.0)) == copied


@pytest.mark.parametrize("first", ["original", "copy"])
def test_the_first_answer_is_the_outcome_and_the_other_attempt_is_needless(end_of_job, first):
    bench, (original,) = end_of_job(left=1)
    (copy,) = hedged(bench, 10.0)
    winner, loser = (original, copy) if first == "original" else (copy, original)
    ended = bench.end(winner)
    assert ended.outcome.ok
    assert ended.outcome.provenance.attempts == 2
    assert ended.needless is loser
    late = bench.end(loser, Break(BreakKind.GIVEN_UP, "needless"))
    assert (late.outcome, late.needless, list(late.effects)) == (None, None, [])
    assert copies_counted(bench) == {"won" if winner is copy else "lost": 1}
    assert bench.desk.in_flight == 0
    assert len(bench.desk.backlog) == 0


def test_two_answers_at_once_make_one_outcome(end_of_job):
    bench, (original,) = end_of_job(left=1)
    (copy,) = hedged(bench, 10.0)
    bench.desk.release(original)
    bench.desk.release(copy)
    first = bench.desk.attempt_ended(original, OK, healthy=None)
    assert first.outcome.ok
    assert first.needless is None, "it is not open any more"
    assert bench.desk.attempt_ended(copy, OK, healthy=None).outcome is None


@pytest.mark.parametrize("fault", [ERROR, Break(BreakKind.REFUSED), Break(BreakKind.TIMED_OUT)])
def test_an_attempt_that_fails_while_its_twin_is_open_leaves_the_request_to_that(end_of_job, fault):
    bench, (original,) = end_of_job(left=1)
    (copy,) = hedged(bench, 10.0)
    ended = bench.end(original, fault)
    assert (ended.outcome, ended.needless) == (None, None)
    bench.time += 10.0
    assert bench.send() == []
    assert bench.end(copy).outcome.ok
    assert copies_counted(bench) == {"won": 1}


def test_a_request_of_which_both_attempts_fail_is_sent_again_once(end_of_job):
    bench, (original,) = end_of_job(left=1)
    (copy,) = hedged(bench, 10.0)
    bench.end(copy, ERROR)
    bench.end(original, ERROR)
    bench.time += 10.0
    bench.desk.look_everywhere()
    (last,) = bench.send()
    assert last.item.charged == 2
    outcome = bench.end(last, ERROR).outcome
    assert not outcome.ok
    assert outcome.provenance.attempts == 3
    assert copies_counted(bench) == {"failed": 1}


def test_a_faulty_request_ends_with_its_first_answer(end_of_job):
    bench, (original,) = end_of_job(left=1)
    (copy,) = hedged(bench, 10.0)
    ended = bench.end(copy, Answer(400, b"{}"))
    assert not ended.outcome.ok
    assert ended.needless is original


def test_a_lost_lease_takes_both_attempts_with_it(end_of_job):
    bench, (original,) = end_of_job(left=1)
    (copy,) = hedged(bench, 10.0)
    assert set(bench.desk.drop([original.item.lease])) == {original, copy}
    assert bench.end(original).outcome is None
    assert bench.end(copy).outcome is None


# At the node


async def test_a_request_that_is_never_answered_is_copied_while_its_server_works_on(bench):
    async with bench(rows=60, pool={"limit": 8}, job={"request_timeout_s": 60.0}) as b:
        b.server("a").silent_to = {0}
        b.server("b").silent_to = {1}
        b.server("a").counts_tokens = b.server("b").counts_tokens = True
        await b.run()
        b.assert_answered_once()
        assert asyncio.get_running_loop().time() < 30, "the timeout is twice that"


async def test_a_server_that_hangs_at_the_end_is_left_to_the_pool(bench):
    async with bench(rows=80, pool={"stall_s": 20}) as b:
        running = asyncio.create_task(b.run())
        await asyncio.sleep(1.5)
        b.server("a").deaf = True
        await running
        b.assert_answered_once()
        assert b.pool.servers["a"].record.evictions == 1
        assert len(b.network.sends()) <= 80 + 16


async def test_a_copy_that_hangs_is_closed_once_the_request_is_answered(bench):
    async with bench(rows=10) as b:
        b.server("a").takes_s = 0.1
        b.server("b").takes_s = 20.0
        await b.run()
        b.assert_answered_once()


async def test_the_last_request_that_a_working_server_never_answers_is_charged_and_ends(bench):
    async with bench(rows=4, servers=("a",), pool={"stall_s": 20}) as b:
        b.server("a").silent_to = {2}
        b.server("a").counts_tokens = True
        await b.run()
        outcome = b.outcomes()[2]
        assert outcome.code is ErrorCode.TIMEOUT
        assert outcome.provenance.attempts == 3
        assert b.pool.servers["a"].record.evictions == 0


# Hints


def request_with(body, model=None):
    return Request(0, "row", "/v1/completions", model, body)


@pytest.mark.parametrize(
    ("body", "most"),
    [
        (b'{"max_tokens": 7}', 7),
        (b'{"max_completion_tokens": 9, "max_tokens": 7}', 9),
        (b'{"max_tokens": null}', 0),
        (b'{"max_tokens": "many"}', 0),
        (b'{"prompt": "x"}', 0),
        (b"no JSON", 0),
    ],
)
def test_the_most_tokens_are_read_from_the_body(body, most):
    assert tokens_max(request_with(body)) == most


def test_the_last_requests_go_out_longest_first(make_desk):
    bench = make_desk()
    bench.admit("a", limit=2)
    bench.admit_shard(count=6)
    for item, most in zip(bench.desk.backlog._fresh[("m", "job")], (5, 1, 9, 1, 7, 3), strict=True):
        item.request = request_with(b'{"max_tokens": %d}' % most, "m")
    bench.desk.queue_is_dry(dry=True)
    order = []
    while sent := bench.send():
        order += [tokens_max(attempt.item.request) for attempt in sent]
        for attempt in sent:
            bench.end(attempt)
    assert order == [9, 7, 5, 3, 1, 1]
