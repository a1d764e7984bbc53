import asyncio
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from dispatcher.config import PoolSettings
from dispatcher.dispatch import live as module
from dispatcher.dispatch.ceiling import Ceiling
from dispatcher.dispatch.live import LiveDesk
from dispatcher.dispatch.prospects import Prospect
from dispatcher.model import (
    Answer,
    Break,
    BreakKind,
    CanaryReport,
    ErrorCode,
    Health,
    ProbeReport,
    Request,
    ServerId,
    ServerSpec,
    Telemetry,
    Tokens,
    Verdict,
)
from dispatcher.pool.effects import GiveUp
from dispatcher.pool.pool import Pool
from dispatcher.pool.states import State
from dispatcher.telemetry.metrics import Metrics
from dispatcher.vllm.verdicts import judge

ASKED = Request(0, "", "/v1/chat/completions", "m", b'{"model":"m"}')
OK = Answer(200, b'{"model":"m","choices":[{"finish_reason":"stop","message":{"content":"a"}}]}')
NONE = frozenset()


class Live:
    """A live desk over a pool of admitted servers, with a clock that the test moves."""

    def __init__(self, reserve=0.1, ceiling=1000):
        self.time = 100.0
        self.registry = CollectorRegistry()
        metrics = Metrics(self.registry)
        settings = PoolSettings(canary=True)
        self.pool = Pool(settings, metrics, lambda: self.time, Random(7), live_reserve=reserve)
        self.freed = []
        self.ceiling = Ceiling(ceiling)
        self.desk = LiveDesk(self.pool, judge, metrics, lambda: self.time, self.freed.append, self.ceiling)

    def join(self, name, limit=4):
        known = [server.spec for server in self.pool.servers.values()]
        spec = ServerSpec(ServerId(f"http://{name}"), f"http://{name}", limit=limit)
        (server,) = self.pool.set_members([*known, spec])
        return server

    def admit(self, name, limit=4, models=("m",)):
        server = self.join(name, limit)
        self.pool.probed(server, ProbeReport(Health.UP))
        self.pool.examined(server, ProbeReport(Health.UP, models=_roots(models)), CanaryReport())
        assert server.state is State.ACTIVE
        self.time += 20  # the ramp is over
        return server

    def wait(self, model="m", avoided=NONE, log=None, name=None):
        return self.desk.wait(model, avoided, lambda: log is None or log.append(name))

    def end(self, attempt, ending=OK, tried=(), healthy=None):
        self.desk.release(attempt)
        return self.desk.ended(attempt, ending, ASKED, tried, healthy=healthy)


def _roots(models):
    return None if models is None else dict.fromkeys(models, "root")


@pytest.fixture
def live():
    return Live()


def refusal(status, fields, **more):
    body = "{" + ",".join(f'"{name}":"{value}"' for name, value in fields.items()) + "}"
    return Answer(status, b'{"error":' + body.encode() + b"}", **more)


# Permits


def test_the_largest_free_share_is_taken_first_and_equals_take_turns(live):
    a, b = live.admit("a", limit=2), live.admit("b", limit=4)
    first, second = live.desk.take("m"), live.desk.take("m")
    assert {first.server, second.server} == {a, b}
    third = live.desk.take("m")
    assert third.server is b


def test_a_request_without_a_model_goes_anywhere_and_one_with_goes_where_it_is(live):
    a, b = live.admit("a", models=("x",)), live.admit("b", models=("y",))
    assert [live.desk.take("y").server for _ in range(3)] == [b, b, b]
    assert live.desk.take(None).server is a


def test_nothing_is_given_beyond_a_servers_limit(live):
    live.admit("a", limit=2)
    assert live.desk.take("m")
    assert live.desk.take("m")
    assert live.desk.take("m") is None


def test_those_that_wait_get_permits_in_order_of_arrival(live):
    live.admit("a", limit=1)
    attempt = live.desk.take("m")
    order = []
    one, two = live.wait(log=order, name="one"), live.wait(log=order, name="two")
    assert live.desk.waiting == 2
    live.end(attempt)
    assert order == ["one"]
    live.end(one.attempt)
    assert order == ["one", "two"]
    assert two.attempt.server.in_flight == 1
    assert live.desk.waiting == 0


def test_one_that_was_sent_before_goes_before_those_that_were_not(live):
    live.admit("a", limit=1)
    attempt = live.desk.take("m")
    order = []
    live.wait(log=order, name="new")
    live.wait(avoided=frozenset({ServerId("http://z")}), log=order, name="again")
    live.end(attempt)
    assert order == ["again"]


def test_a_newcomer_does_not_overtake_those_that_wait(live):
    live.admit("a", limit=1)
    attempt = live.desk.take("m")
    waiter = live.wait()
    live.desk.release(attempt)
    assert live.desk.take("m") is None
    live.desk.look_everywhere()
    assert waiter.attempt is not None


def test_the_oldest_of_all_models_that_a_server_has_is_first(live):
    live.admit("a", limit=1, models=("m", "n"))
    attempt = live.desk.take("m")
    order = []
    live.wait("n", log=order, name="n")
    live.wait("m", log=order, name="m")
    live.end(attempt)
    assert order == ["n"]


def test_a_waiter_is_passed_over_where_its_server_is_avoided(live):
    a = live.admit("a", limit=1)
    attempt = live.desk.take("m")
    order = []
    live.wait(avoided=frozenset({a.spec.id}), log=order, name="avoids it")
    live.wait(log=order, name="takes it")
    live.end(attempt)
    assert order == ["takes it"]


def test_one_that_is_forgotten_gives_back_what_it_was_granted(live):
    a = live.admit("a", limit=1)
    attempt = live.desk.take("m")
    one, two = live.wait(), live.wait()
    live.end(attempt)
    assert one.attempt is not None
    live.desk.forget(one)
    assert two.attempt is not None
    live.desk.forget(two)
    assert a.in_flight == 0
    assert not live.desk.open
    assert live.desk.waiting == 0


def test_nothing_is_opened_beyond_the_ceiling_that_jobs_and_live_requests_share():
    live = Live(ceiling=5)
    server = live.admit("a", limit=8)
    live.ceiling.open = 2  # of jobs
    first, second = live.desk.take("m"), live.desk.take("m")
    assert (live.ceiling.open, live.desk.take("m")) == (6, None)
    log = []
    live.wait(log=log, name="waits")
    live.desk.permit_freed(server)
    assert log == []
    live.end(first)
    assert log == ["waits"]
    live.desk.drop(second)
    assert live.ceiling.open == 2 + 2


def test_a_fault_of_this_machine_lowers_the_ceiling(live):
    live.admit("a", limit=64)
    attempts = [live.desk.take("m") for _ in range(51)]
    live.end(attempts[0], Break(BreakKind.LOCAL))
    assert live.ceiling.value == 80


def test_too_many_do_not_wait(live, monkeypatch):
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    live.admit("a", limit=1)
    live.desk.take("m")
    assert live.wait()
    assert live.wait()
    assert live.wait() is None


def test_jobs_leave_the_reserve_free_and_keep_one_permit_of_the_smallest_limit(live):
    big, small = live.admit("a", limit=64), live.admit("b", limit=1)
    assert big.permits_for_jobs(live.time) == 57
    assert big.permits_free(live.time) == 64
    assert small.permits_for_jobs(live.time) == 1
    for _ in range(57):
        big.took(live.time)
    assert big.permits_for_jobs(live.time) == 0
    assert big.permits_free(live.time) == 7
    assert big.spoken_for(live.time) == 64


def test_a_learned_limit_grows_where_jobs_leave_only_the_reserve_free(live):
    server = live.admit("a", limit=None)
    assert server.limit.permits(live.time) == 256
    while server.permits_for_jobs(live.time) > 0:
        server.took(live.time)
    assert server.in_flight == 230
    live.pool.scraped(server, Telemetry(waiting=0))
    assert server.limit.permits(live.time) == 320


def test_without_a_reserve_jobs_may_use_all():
    live = Live(reserve=0.0)
    server = live.admit("a", limit=8)
    assert server.permits_for_jobs(live.time) == server.permits_free(live.time) == 8


def test_jobs_are_told_of_a_permit_that_no_live_request_wants(live):
    a = live.admit("a", limit=1)
    live.end(live.desk.take("m"))
    assert live.freed == [a]


# What may be hoped for


def test_what_a_model_may_hope_for(live):
    assert live.desk.prospect("m") is Prospect.LATER  # servers are still to be found
    server = live.admit("a")
    assert live.desk.prospect("m") is Prospect.SERVED
    assert live.desk.prospect(None) is Prospect.SERVED
    assert live.desk.prospect("n") is Prospect.NEVER
    live.end(live.desk.take("m"), Break(BreakKind.RESET))
    assert server.state is State.SUSPECT
    assert live.desk.prospect("m") is Prospect.SOON
    live.pool.probed(server, ProbeReport(Health.REFUSED))
    assert live.desk.prospect("m") is Prospect.LATER
    live.join("b")  # it has not said yet what it has
    assert live.desk.prospect("n") is Prospect.LATER


# Ends


def test_a_good_answer_is_passed_on_and_counts_for_its_server(live):
    a = live.admit("a")
    ended = live.end(live.desk.take("m"))
    assert not ended.again
    assert a.record.succeeded == 1
    assert a.in_flight == 0


@pytest.mark.parametrize("kind", [BreakKind.REFUSED, BreakKind.RESET, BreakKind.STALE, BreakKind.TRUNCATED])
def test_a_broken_connection_is_sent_again(live, kind):
    live.admit("a")
    live.admit("b")
    assert live.end(live.desk.take("m"), Break(kind)).again


def test_a_refused_connection_evicts_and_what_waits_there_is_not_sent_to_it(live):
    a = live.admit("a", limit=1)
    attempt, waiter = live.desk.take("m"), live.wait()
    ended = live.end(attempt, Break(BreakKind.REFUSED))
    assert ended.again
    assert a.state is State.EVICTED
    assert any(isinstance(effect, GiveUp) for effect in ended.effects)
    assert waiter.attempt is None


def test_overload_goes_elsewhere_only_where_there_is_room(live):
    a, b = live.admit("a", limit=1), live.admit("b", limit=1)
    first, second = live.desk.take("m"), live.desk.take("m")
    assert {first.server, second.server} == {a, b}
    full = refusal(429, {"message": "full"})
    assert not live.end(first, full).again
    live.end(second)
    live.time += 2
    assert live.end(live.desk.take("m"), full).again


def test_what_clients_ask_for_is_no_evidence_against_servers(live):
    a = live.admit("a")
    live.admit("b")
    for _ in range(30):
        for answer in (refusal(400, {"message": "no"}), Answer(200, b"{}"), refusal(418, {"message": "tea"})):
            attempt = live.desk.take("m")
            assert not live.end(attempt, answer).again
    assert a.doubts == 0
    assert a.state is State.ACTIVE


def test_a_name_that_a_server_without_a_list_does_not_know_says_nothing_of_it(live):
    a = live.admit("a", models=None)
    lacks = refusal(404, {"message": "no", "type": "NotFoundError", "param": "model"})
    ended = live.end(live.desk.take("whatever"), lacks)
    assert not ended.again
    assert a.state is State.ACTIVE
    assert a.serves("m")


def test_a_listed_model_that_is_denied_takes_its_server_out(live):
    a = live.admit("a")
    live.admit("b")
    lacks = refusal(404, {"message": "no", "type": "NotFoundError", "param": "model"})
    attempt = live.desk.take("m", frozenset({ServerId("http://b")}))
    assert live.end(attempt, lacks).again
    assert a.state is State.MISMATCHED


def test_a_plain_500_goes_to_another_server_once_there_is_one(live):
    live.admit("a")
    assert not live.end(live.desk.take("m"), Answer(500, b"")).again
    live.admit("b")
    assert live.end(live.desk.take("m"), Answer(500, b"")).again
    assert not live.end(live.desk.take("m"), Answer(504, b"")).again


def test_a_server_that_is_given_up_closes_what_is_open_there_and_blames_nobody(live):
    a = live.admit("a")
    live.admit("b")
    attempt = live.desk.take("m", frozenset({ServerId("http://b")}))
    other = live.desk.take("m", frozenset({ServerId("http://a")}))
    closed = []
    attempt.close = lambda: closed.append("a")
    other.close = lambda: closed.append("b")
    live.desk.give_up(GiveUp(a, "dead"))
    live.desk.give_up(GiveUp(a, "dead"))
    assert closed == ["a"]
    ended = live.end(attempt, attempt.given_up)
    assert ended.again
    assert ended.effects == ()
    assert other.given_up is None


def test_a_server_that_left_is_forgotten_with_its_last_live_request(live):
    a = live.admit("a")
    attempt = live.desk.take("m")
    live.pool.set_members([])
    assert a.state is State.DRAINING
    live.desk.release(attempt)
    live.desk.streamed(attempt)
    assert a.state is State.GONE
    assert live.desk.prospect("m") is Prospect.LATER


def test_a_stream_that_goes_on_is_progress(live):
    a = live.admit("a")
    attempt = live.desk.take("m")
    live.time += 50
    live.desk.progressed(attempt)
    assert a.progress_at == live.time
    live.desk.release(attempt)
    assert live.desk.streamed(attempt).judgement.verdict is Verdict.SUCCESS


def test_the_tokens_of_live_answers_are_counted(live):
    a = live.admit("a")
    attempt = live.desk.take("m")
    live.desk.release(attempt)
    live.desk.streamed(attempt, Tokens(7, 9))
    usage = b'"usage":{"prompt_tokens":1,"completion_tokens":2}'
    live.end(live.desk.take("m"), Answer(200, OK.body[:-1] + b"," + usage + b"}"))
    counted = [
        live.registry.get_sample_value("dispatcher_tokens_total", {"model": "m", "kind": kind})
        for kind in ("prompt", "completion")
    ]
    assert (counted, a.record.tokens) == ([8, 11], 11)


def test_a_death_under_a_request_that_had_failed_before_excuses_the_jobs(live):
    a = live.admit("a")
    first, again = live.desk.take("m"), live.desk.take("m")
    again.repeated = True
    assert live.desk.may_have_ended(a)
    live.end(first, Break(BreakKind.RESET))
    live.end(again, Break(BreakKind.RESET), tried=("http://z",))
    assert not live.desk.open
    assert live.desk.may_have_ended(a)
    live.time += 11
    assert not live.desk.may_have_ended(a)


def test_a_death_under_a_fresh_request_excuses_nobody(live):
    a = live.admit("a")
    attempt = live.desk.take("m")
    assert not live.desk.may_have_ended(a)
    live.end(attempt, Break(BreakKind.RESET))
    assert not live.desk.may_have_ended(a)


# At the node


async def test_no_row_is_convicted_of_a_death_that_a_live_request_may_have_caused(bench):
    async with bench(rows=60, servers=("a", "b", "c", "d"), free_resends_max=3) as b:
        b.desk.excused = lambda _server: True
        for name in "abcd":
            b.server(name).deadly = frozenset({30})
        await b.run()
        codes = {index: outcome.code for index, outcome in b.outcomes().items()}
        assert codes.pop(30) is ErrorCode.RESENDS_EXHAUSTED
        assert set(codes.values()) == {None}


async def test_jobs_leave_the_reserve_of_each_server_free(bench):
    async with bench(rows=400) as b:
        for server in b.pool.servers.values():
            server.reserve = 0.25
        await b.run()
        b.assert_answered_once()
        assert b.network.open_most == 24


async def test_live_requests_are_offered_a_permit_before_the_next_row(bench):
    async with bench(rows=40, servers=("a",), pool={"limit": 1}) as b:
        offered = []
        b.desk.first_refusal = lambda server: offered.append((server.in_flight, server.state))
        await b.run()
        assert len(offered) == 40
        assert {in_flight for in_flight, _ in offered} == {0}


async def test_a_permit_that_a_live_request_gives_back_is_a_jobs_at_once(bench):
    async with bench(rows=40, servers=("a",), pool={"limit": 1}) as b:
        task = asyncio.create_task(b.run())
        await asyncio.sleep(0.5)
        (server,) = b.pool.servers.values()
        b.desk.first_refusal = lambda freed: freed.took(100.0)
        while b.desk.in_flight:  # noqa: ASYNC110  # time is virtual
            await asyncio.sleep(0.01)
        b.desk.first_refusal = lambda _freed: None
        assert server.in_flight == 1
        server.gave_back(100.0)
        b.node.permit_freed(server)
        assert b.desk.in_flight == 1
        await task
        b.assert_answered_once()
