import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise

import pytest

from dispatcher.model import (
    CanaryFault,
    CanaryReport,
    Health,
    Judgement,
    ProbeReport,
    ServerId,
    ServerSpec,
    Telemetry,
    Verdict,
)
from dispatcher.pool.effects import AttemptEnd
from dispatcher.pool.monitor import REFRESH_EVERY, SCRAPE_SHARE, TOLD_MAX, Monitor
from dispatcher.pool.moves import LAST_WORDS_S
from dispatcher.pool.states import State

SLOW = CanaryReport(CanaryFault.SLOW, "no answer in time")


class LoopClock:
    def now(self):
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)


class ScriptedProber:
    """One world of servers that all say the same, and a log of who was asked what, and when."""

    def __init__(self):
        self.report = ProbeReport(Health.UP, models={"m": "m"})
        self.canary_report = CanaryReport()
        self.telemetry = Telemetry(waiting=0.0)
        self.takes_s = dict.fromkeys(("probe", "inspect", "canary", "scrape"), 0.0)
        self.log = []
        self.asked = []
        """The models and questions of the canaries."""

    async def _answer(self, what, server):
        self.log.append((asyncio.get_running_loop().time(), what, server.id))
        await asyncio.sleep(self.takes_s[what])

    async def probe(self, server):
        await self._answer("probe", server)
        return replace(self.report, models=None, sleeping=None)

    async def inspect(self, server):
        await self._answer("inspect", server)
        return self.report

    async def canary(self, server, model, known=None):
        if known is None:
            assert model == (next(iter(self.report.models)) if self.report.models else None)
        self.asked.append((model, known))
        await self._answer("canary", server)
        return self.canary_report

    async def scrape(self, server, _timeout_s=None):
        await self._answer("scrape", server)
        return self.telemetry

    def times(self, what):
        return [at for at, asked, _ in self.log if asked == what]


class Listener:
    def __init__(self):
        self.given_up = []
        self.spared = []
        self.changes = 0

    def give_up(self, effect):
        self.given_up.append((asyncio.get_running_loop().time(), effect.reason))

    def spare(self, server):
        self.spared.append((asyncio.get_running_loop().time(), server.spec.id))

    def capacity_changed(self):
        self.changes += 1


class Watched:
    """A monitor at work on a fleet."""

    def __init__(self, fleet, tasks):
        self.fleet, self.pool = fleet, fleet.pool
        self.prober, self.listener = ScriptedProber(), Listener()
        self.monitor = Monitor(fleet.pool, self.prober, LoopClock(), fleet.metrics, tasks)
        self.monitor.join(self.listener)

    def watch(self, *names):
        self.monitor.watch([ServerSpec(ServerId(name), name) for name in names])

    def state(self, name="s"):
        return self.pool.servers[ServerId(name)].state

    def server(self, name="s"):
        return self.pool.servers[ServerId(name)]

    def die(self, name="s"):
        end = AttemptEnd(Judgement(Verdict.SERVER_FAULT, hard=True), LoopClock().now(), "m")
        self.monitor.carry_out(self.pool.attempt_ended(self.server(name), end))


@pytest.fixture
def watching(make_fleet):
    @asynccontextmanager
    async def watching(**settings):
        fleet = make_fleet(clock_now=LoopClock().now, **settings)
        before = asyncio.all_tasks()
        async with asyncio.TaskGroup() as tasks:
            watched = Watched(fleet, tasks)
            yield watched
            watched.monitor.stop()
            watched.monitor.stop()
        assert asyncio.all_tasks() == before, "stop leaves no task"

    return watching


async def test_a_server_that_answers_is_verified_and_admitted_without_waiting(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(0.1)
        assert w.state() is State.ACTIVE
        assert [what for _, what, _ in w.prober.log] == ["probe", "inspect", "canary"]
        assert w.listener.changes > 0


async def test_a_server_that_does_not_answer_yet_is_asked_every_interval(watching):
    async with watching() as w:
        w.prober.report = ProbeReport(Health.REFUSED)
        w.watch("s")
        await asyncio.sleep(16)
        assert w.state() is State.JOINING
        assert w.prober.times("probe") == [0, 5, 10, 15]
        assert not w.prober.times("canary")


async def test_a_failed_canary_evicts_and_is_tried_again_with_growing_pauses(watching):
    async with watching() as w:
        w.prober.canary_report = CanaryReport(CanaryFault.FAILED, "HTTP 500")
        w.watch("s")
        await asyncio.sleep(600)
        tries = w.prober.times("canary")
        assert tries[1] == 2
        assert 10 < len(tries) < 40
        assert all(2 <= later - earlier <= 60 for earlier, later in pairwise(tries))
        w.prober.canary_report = CanaryReport()
        await asyncio.sleep(61)
        assert w.state() is State.ACTIVE


async def test_a_sleeping_server_is_paused_without_a_canary_until_it_wakes(watching):
    async with watching() as w:
        w.prober.report = ProbeReport(Health.UP, sleeping=True)
        w.watch("s")
        await asyncio.sleep(300)
        assert w.state() is State.PAUSED
        assert not w.prober.times("canary")
        w.prober.report = ProbeReport(Health.UP, sleeping=False)
        await asyncio.sleep(61)
        assert w.state() is State.ACTIVE


async def test_no_canary_is_sent_where_the_user_wants_none(watching):
    async with watching(canary=False) as w:
        w.watch("s")
        await asyncio.sleep(1)
        assert w.state() is State.ACTIVE
        assert not w.prober.times("canary")


QUESTION = {"messages": [{"role": "user", "content": "2+2?"}], "expect": "four"}
WRONG = CanaryReport(CanaryFault.WRONG, "answered 'five', where 'four' was to be heard")


@pytest.mark.parametrize(
    ("models", "wanted", "asked", "known"),
    [
        ({"m": "m", "adapter": "a"}, None, "m", True),
        ({"m": "m", "adapter": "a"}, "adapter", "adapter", True),
        ({"m": "m"}, "adapter", "m", False),
        (None, None, None, True),
        (None, "adapter", "adapter", True),
        ({}, "adapter", None, False),
    ],
)
async def test_the_known_question_is_asked_of_the_model_that_it_is_for(
    watching, models, wanted, asked, known
):
    async with watching(canary={**QUESTION, "model": wanted}) as w:
        w.prober.report = ProbeReport(Health.UP, models=models)
        w.watch("s")
        await asyncio.sleep(1)
        assert w.prober.asked == [(asked, w.pool.settings.canary if known else None)]


async def test_a_server_that_answers_falsely_is_never_admitted_until_it_answers_as_expected(watching):
    async with watching(canary=QUESTION) as w:
        w.prober.canary_report = WRONG
        w.watch("s")
        await asyncio.sleep(600)
        assert w.state() is State.MISMATCHED
        assert w.server().reason == WRONG.detail
        assert w.server().machine.history[-1].before is State.VERIFYING
        assert all(2 <= later - earlier <= 60 for earlier, later in pairwise(w.prober.times("canary")))
        w.prober.canary_report = CanaryReport()
        await asyncio.sleep(61)
        assert w.state() is State.ACTIVE


async def test_a_server_too_busy_for_the_question_is_asked_again_and_not_let_in(watching):
    async with watching(canary=QUESTION) as w:
        w.prober.canary_report = CanaryReport(CanaryFault.BUSY, "429")
        w.watch("s")
        await asyncio.sleep(60)
        assert w.state() is not State.ACTIVE
        assert len(w.prober.times("canary")) > 3
        w.prober.canary_report = CanaryReport()
        await asyncio.sleep(61)
        assert w.state() is State.ACTIVE


async def test_a_server_in_rotation_is_reminded_of_the_question_at_the_look_after_each_inspection(watching):
    async with watching(canary=QUESTION) as w:
        w.watch("s")
        await asyncio.sleep(5 * 2 * REFRESH_EVERY)
        inspections, canaries = w.prober.times("inspect")[1:], w.prober.times("canary")[1:]
        assert canaries == [at + 5 for at in inspections]
        assert len(canaries) == 2


async def test_one_token_is_asked_once(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(300)
        assert len(w.prober.times("canary")) == 1


async def test_a_server_whose_answer_has_become_false_is_out_and_its_open_requests_are_given_up(watching):
    async with watching(canary=QUESTION) as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.server().took(1.0)
        w.prober.canary_report = WRONG
        await asyncio.sleep(5 * (REFRESH_EVERY + 1))
        assert w.state() is State.MISMATCHED
        assert [reason for _, reason in w.listener.given_up][:1] == [WRONG.detail]


async def test_a_reminder_that_is_not_answered_says_nothing(watching):
    async with watching(canary=QUESTION) as w:
        w.watch("s")
        await asyncio.sleep(1)
        for fault in (CanaryFault.SLOW, CanaryFault.BUSY, CanaryFault.FAILED, CanaryFault.UNASKED):
            w.prober.canary_report = CanaryReport(fault, "x")
            await asyncio.sleep(5 * (REFRESH_EVERY + 1))
            assert w.state() is State.ACTIVE
        assert len(w.prober.times("canary")) > 4


async def test_a_suspect_that_this_machine_cannot_ask_stays_one_and_is_asked_again(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.prober.canary_report = CanaryReport(CanaryFault.UNASKED, "no resolver")
        end = AttemptEnd(Judgement(Verdict.LOCAL_FAULT, message="no resolver", offline=True), 1.0, "m")
        w.monitor.carry_out(w.pool.attempt_ended(w.server(), end))
        await asyncio.sleep(100)
        assert w.state() is State.SUSPECT
        assert all(later - earlier == 2 for earlier, later in pairwise(w.prober.times("canary")[1:]))
        w.prober.canary_report = CanaryReport()
        await asyncio.sleep(2)
        assert w.state() is State.ACTIVE
        assert (w.server().setbacks, w.server().record.evictions) == (1, 0)
        assert not w.listener.given_up


async def test_a_server_that_this_machine_cannot_ask_yet_is_asked_until_it_can(watching):
    async with watching() as w:
        w.prober.canary_report = CanaryReport(CanaryFault.UNASKED, "no resolver")
        w.watch("s")
        await asyncio.sleep(60)
        assert w.state() is State.VERIFYING
        assert len(w.prober.times("canary")) == 30
        w.prober.canary_report = CanaryReport()
        await asyncio.sleep(2)
        assert w.state() is State.ACTIVE


async def test_slow_health_evicts_nobody_and_does_not_end_the_watch(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.server().took(1.0)
        w.prober.report = ProbeReport(Health.SLOW)
        w.prober.takes_s["probe"] = 10.0
        await asyncio.sleep(100)
        assert w.state() is State.ACTIVE
        assert w.prober.times("probe")[-1] > 85
        assert not w.listener.given_up


async def test_a_server_in_rotation_is_probed_every_interval_and_inspected_every_sixth_time(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(5 * 2 * REFRESH_EVERY - 9)
        looks = [what for at, what, _ in w.prober.log if at > 0 and what != "scrape"]
        assert looks == ["probe"] * 3 + ["inspect"] + ["probe"] * 5 + ["inspect"]


async def test_metrics_are_scraped_no_more_often_than_their_interval_says(watching):
    async with watching(probe_interval_s=1, scrape_interval_s=7) as w:
        w.watch("s")
        await asyncio.sleep(30)
        scrapes = w.prober.times("scrape")
        assert scrapes == [7, 14, 21, 28]


async def test_telemetry_leads_the_limit(watching):
    async with watching() as w:
        w.prober.telemetry = Telemetry(waiting=0.0, kv_max_concurrency=10.0)
        w.watch("s")
        await asyncio.sleep(8)
        assert w.server().limit.permits(8.0) == 10


async def test_a_dead_server_is_looked_at_after_the_shortest_back_off_not_after_the_old_plan(watching):
    async with watching(probe_interval_s=100) as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.die()
        assert w.state() is State.EVICTED
        assert [reason for _, reason in w.listener.given_up] == [""]
        await asyncio.sleep(2.1)
        assert w.state() is State.ACTIVE
        assert w.prober.times("probe") == [0, 3]


async def test_a_probe_that_began_before_the_death_does_not_readmit(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.prober.takes_s["probe"] = 2.0
        await asyncio.sleep(5)
        assert w.prober.times("probe")[-1] == 5
        w.die()  # at 6, while the probe that will say yes is on its way
        await asyncio.sleep(1.9)
        assert w.state() is State.EVICTED


async def test_a_stalled_server_is_evicted_within_the_stall_and_one_probe(watching):
    async with watching(probe_interval_s=0.2, probe_timeout_s=0.5, stall_s=2) as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.server().took(1.0)
        w.prober.canary_report = SLOW
        w.prober.takes_s["canary"] = 0.5
        await asyncio.sleep(2 + 0.2 + 0.5)
        assert w.state() is State.EVICTED
        assert len(w.listener.given_up) == 1
        await asyncio.sleep(100)
        assert w.state() is not State.ACTIVE


async def test_a_busy_suspect_whose_tokens_move_while_the_canary_waits_is_not_evicted(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.server().took(1.0)
        w.prober.canary_report = SLOW
        w.prober.takes_s["canary"] = 10.0

        async def counting(_server, _timeout_s=None):
            return Telemetry(generation_tokens_total=100 * LoopClock().now())

        w.prober.scrape = counting
        end = AttemptEnd(Judgement(Verdict.SERVER_FAULT), 1.0, "m")
        w.monitor.carry_out(w.pool.attempt_ended(w.server(), end))
        assert w.state() is State.SUSPECT
        await asyncio.sleep(11)
        assert w.state() is State.ACTIVE
        assert not w.listener.given_up


async def test_tokens_from_before_the_suspicion_do_not_save_a_hung_suspect(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.server().took(1.0)
        w.server().tokens_seen = 5.0
        w.prober.telemetry = Telemetry(generation_tokens_total=1000.0)
        w.prober.canary_report = SLOW
        w.prober.takes_s["canary"] = 10.0
        end = AttemptEnd(Judgement(Verdict.SERVER_FAULT), 1.0, "m")
        w.monitor.carry_out(w.pool.attempt_ended(w.server(), end))
        await asyncio.sleep(11)
        assert w.state() is State.EVICTED


async def test_a_changed_list_is_followed(watching):
    async with watching() as w:
        w.watch("a", "b")
        await asyncio.sleep(1)
        w.watch("b", "c")
        await asyncio.sleep(1)
        assert {name: server.state for name, server in w.pool.servers.items()} == {
            "b": State.ACTIVE,
            "c": State.ACTIVE,
        }
        w.prober.log.clear()
        await asyncio.sleep(30)
        assert {name for _, _, name in w.prober.log} == {"b", "c"}


@pytest.mark.parametrize("away_s", [0, 0.5, 4, 7])
async def test_a_server_that_leaves_and_comes_back_is_watched_as_a_new_one(watching, away_s):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        old = w.server()
        w.watch()
        await asyncio.sleep(away_s)
        w.watch("s")
        await asyncio.sleep(20)
        assert w.server() is not old
        assert w.state() is State.ACTIVE
        w.die()
        await asyncio.sleep(3)
        assert w.state() is State.ACTIVE


async def test_a_server_that_leaves_while_it_backs_off_is_not_kept(watching):
    async with watching(readmit_backoff_min_s=1000, readmit_backoff_max_s=1000) as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.die()
        await asyncio.sleep(1)
        others = len(asyncio.all_tasks())
        w.watch()
        await asyncio.sleep(1)
        assert len(asyncio.all_tasks()) == others - 1


async def test_a_draining_server_is_watched_calmly_until_it_is_gone_without_metrics(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        server = w.server()
        server.took(1.0)
        w.watch()
        w.prober.log.clear()
        await asyncio.sleep(31)
        assert server.state is State.DRAINING
        assert len(w.prober.times("probe")) == 6
        server.gave_back(float("inf"))
        w.prober.takes_s["probe"] = 1.0
        await asyncio.sleep(7)
        assert server.state is State.GONE
        assert not [
            sample
            for family in w.fleet.registry.collect()
            for sample in family.samples
            if sample.labels.get("server") == "s"
        ]


async def test_a_probe_that_outlasts_its_server_does_not_bring_its_metrics_back(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        server = w.server()
        w.prober.takes_s["probe"] = 3.0
        await asyncio.sleep(5)
        w.watch()
        assert server.state is State.GONE
        await asyncio.sleep(5)
        assert not w.fleet.series_of(server)


async def test_a_draining_server_that_refuses_has_its_requests_closed(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.server().took(1.0)
        w.watch()
        w.prober.report = ProbeReport(Health.REFUSED, "nobody listens")
        await asyncio.sleep(5.1)
        assert [reason for _, reason in w.listener.given_up] == ["nobody listens"]


@pytest.mark.parametrize(
    ("health", "healthy"),
    [
        (Health.UP, True),
        (Health.DOWN, False),
        (Health.REFUSED, False),
        (Health.ABSENT, None),
        (Health.SLOW, None),
        (Health.UNREACHABLE, None),
        (Health.UNASKED, None),
    ],
)
async def test_health_is_asked_now_and_unknown_is_unknown(watching, health, healthy):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.prober.report = ProbeReport(health)
        assert await w.monitor.healthy(w.server()) is healthy


async def test_states_are_told_with_their_reasons(watching):
    async with watching() as w:
        w.watch("b", "a")
        assert w.monitor.states() == {"a": "joining (not answered yet)", "b": "joining (not answered yet)"}
        await asyncio.sleep(1)
        told = "active (verified; serves m)"
        assert w.monitor.states() == {"a": told, "b": told}


async def test_of_a_large_fleet_some_are_told_and_the_others_counted(watching):
    async with watching() as w:
        w.watch(*(f"{number:03}" for number in range(150)))
        told = w.monitor.states()
        assert len(told) == TOLD_MAX + 1
        assert told["and 50 more"] == "50 joining"


async def test_a_server_in_rotation_is_told_with_the_models_it_serves(watching):
    async with watching() as w:
        w.prober.report = ProbeReport(Health.UP, models={"b": "b", "a": "b"})
        w.watch("s")
        await asyncio.sleep(1)
        w.server().lacking["a"] = 0.5
        assert w.monitor.states() == {"s": "active (verified; serves b, but answered that it has no a)"}


# Between the looks


def working(w, name="s"):
    """A server under load that has just answered, as it does ten times a second."""
    server, now = w.server(name), LoopClock().now()
    server.took(now)
    end = AttemptEnd(Judgement(Verdict.SUCCESS), now - 0.1, "m")
    w.monitor.carry_out(w.pool.attempt_ended(server, end))
    return server


async def test_a_server_that_falls_silent_is_looked_at_within_a_second_and_once(watching):
    async with watching(probe_interval_s=100) as w:
        w.watch("s")
        await asyncio.sleep(1)
        working(w)
        w.prober.report = ProbeReport(Health.REFUSED, "nobody listens")
        await asyncio.sleep(0.8)
        assert w.state() is State.EVICTED
        assert w.prober.times("probe") == [0, 1.5]


async def test_a_server_that_is_only_slow_to_answer_is_looked_at_once(watching):
    async with watching(probe_interval_s=100) as w:
        w.watch("s")
        await asyncio.sleep(1)
        working(w)
        await asyncio.sleep(50)
        assert w.prober.times("probe") == [0, 1.5]


async def test_an_early_look_does_not_begin_while_another_is_under_way(watching):
    async with watching(probe_interval_s=5) as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.prober.takes_s["probe"] = 3.0
        await asyncio.sleep(5)
        working(w)
        await asyncio.sleep(1.5)
        assert w.prober.times("probe") == [0, 5]


async def test_a_stall_is_seen_while_a_look_is_slow_and_overtakes_it(watching):
    async with watching(stall_s=8) as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.server().took(1.0)
        w.prober.takes_s["probe"] = 10.0  # from 5 to 15
        w.prober.canary_report = SLOW
        await asyncio.sleep(8.25)
        assert w.prober.times("canary") == [0, 9]
        assert w.state() is State.EVICTED


async def test_a_look_at_a_server_that_is_found_dead_meanwhile_is_broken_off(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.prober.takes_s["probe"] = 1000.0
        await asyncio.sleep(5)
        w.die()
        w.prober.takes_s["probe"] = 0.0
        await asyncio.sleep(2.1)
        assert w.state() is State.ACTIVE


async def test_a_changed_list_does_not_break_off_a_look(watching):
    async with watching() as w:
        w.prober.takes_s["canary"] = 1.0
        w.watch("s")
        for _ in range(10):
            await asyncio.sleep(0.3)
            w.watch("s", "t")
        assert w.state() is State.ACTIVE
        assert w.prober.times("canary") == [0, 0.3]


async def test_figures_are_read_while_a_look_is_slow(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.prober.takes_s["probe"] = 100.0
        await asyncio.sleep(20)
        assert w.prober.times("scrape") == [5, 10, 15, 20]


async def test_slow_figures_are_waited_for_for_a_part_of_the_stall_and_one_at_a_time(watching):
    async with watching() as w:
        patience = []

        async def scrape(_server, timeout_s=None):
            patience.append((LoopClock().now(), timeout_s))
            await asyncio.sleep(40)
            return Telemetry(generation_tokens_total=LoopClock().now())

        w.prober.scrape = scrape
        w.watch("s")
        await asyncio.sleep(1)
        w.server().took(1.0)
        await asyncio.sleep(3600)
        assert patience[0] == (5, SCRAPE_SHARE * 120)
        assert all(later - earlier >= 40 for (earlier, _), (later, _) in pairwise(patience))
        assert w.state() is State.ACTIVE, "figures of which each takes 40 s show progress all the same"
        assert w.listener.spared == [(0, "s")], "at its admission only"


async def test_the_figures_of_an_earlier_life_are_not_believed(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.prober.takes_s["scrape"] = 8.0
        w.prober.telemetry = Telemetry(waiting=0.0, kv_max_concurrency=3.0)
        await asyncio.sleep(5)  # asked for at 5, they come at 13
        w.die()
        await asyncio.sleep(7.5)
        assert w.server().limit.permits(13.5) > 3


@pytest.mark.parametrize("died", ["by an attempt", "by a look"])
async def test_the_requests_of_a_dead_server_have_a_moment_to_break_of_themselves(watching, died):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.server().took(1.0)
        if died == "by an attempt":
            w.die()
        else:
            w.prober.report = ProbeReport(Health.REFUSED)
            await asyncio.sleep(4.01)
        at = w.server().machine.since
        assert w.state() is State.EVICTED
        assert not w.listener.given_up
        changes = w.listener.changes
        await asyncio.sleep(LAST_WORDS_S + 0.01)
        assert [given_up_at for given_up_at, _ in w.listener.given_up] == [at + LAST_WORDS_S]
        assert w.listener.changes > changes


async def test_a_suspect_of_which_suspicion_is_a_habit_is_asked_at_once_whether_it_lives(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.server().setbacks = 9
        w.prober.log.clear()
        end = AttemptEnd(Judgement(Verdict.SERVER_FAULT), 1.0, "m")
        w.monitor.carry_out(w.pool.attempt_ended(w.server(), end))
        await asyncio.sleep(0.1)
        assert [what for _, what, _ in w.prober.log] == ["probe"]
        assert w.state() is State.SUSPECT
        await asyncio.sleep(61)
        assert len(w.prober.times("canary")) == 1
        assert w.state() is State.ACTIVE


async def test_a_suspect_of_which_suspicion_is_a_habit_and_that_is_dead_is_evicted_at_once(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        w.server().setbacks = 9
        w.prober.report = ProbeReport(Health.REFUSED)
        end = AttemptEnd(Judgement(Verdict.SERVER_FAULT), 1.0, "m")
        w.monitor.carry_out(w.pool.attempt_ended(w.server(), end))
        await asyncio.sleep(0.1)
        assert w.state() is State.EVICTED


async def test_a_suspect_of_a_stall_is_examined_at_once_however_often(watching):
    async with watching() as w:
        w.watch("s")
        await asyncio.sleep(1)
        server = w.server()
        server.setbacks = 9
        server.took(1.0)
        w.prober.log.clear()
        await asyncio.sleep(121)
        (canary_at,) = w.prober.times("canary")
        assert canary_at == pytest.approx(121, abs=0.3)
        assert (server.state, server.setbacks) == (State.ACTIVE, 9)


async def test_who_has_left_is_told_nothing_more(watching):
    async with watching() as w:
        w.monitor.leave(w.listener)
        w.watch("s")
        await asyncio.sleep(1)
        assert w.listener.changes == 0


@pytest.mark.parametrize("at_s", [0, 0.5, 1.5, 2.5, 5.5, 12])
async def test_stop_ends_the_watch_wherever_it_is(watching, at_s):
    async with watching() as w:
        w.prober.takes_s = dict.fromkeys(w.prober.takes_s, 1.0)
        w.watch("s", "t")
        await asyncio.sleep(at_s)
