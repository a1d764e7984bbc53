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
from dispatcher.pool.monitor import REFRESH_EVERY, Monitor
from dispatcher.pool.states import State

SLOW = CanaryReport(CanaryFault.SLOW, "no answer in time")


class LoopClock:
    def now(self):
        return asyncio.get_running_loop().time()


class ScriptedProber:
    """One world of servers that all say the same, and a log of who was asked what, and when."""

    def __init__(self):
        self.report = ProbeReport(Health.UP, models={"m": "m"})
        self.canary_report = CanaryReport()
        self.telemetry = Telemetry(waiting=0.0)
        self.takes_s = dict.fromkeys(("probe", "inspect", "canary", "scrape"), 0.0)
        self.log = []

    async def _answer(self, what, server):
        self.log.append((asyncio.get_running_loop().time(), what, server.id))
        await asyncio.sleep(self.takes_s[what])

    async def probe(self, server):
        await self._answer("probe", server)
        return replace(self.report, models=None, sleeping=None)

    async def inspect(self, server):
        await self._answer("inspect", server)
        return self.report

    async def canary(self, server, model):
        assert model == (next(iter(self.report.models)) if self.report.models else None)
        await self._answer("canary", server)
        return self.canary_report

    async def scrape(self, server):
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
        fleet = make_fleet(**settings)
        fleet.pool._now = LoopClock().now
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
        assert scrapes == [1, 8, 15, 22, 29]


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

        async def counting(server):
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
        server.gave_back()
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
        assert w.monitor.states() == {"a": "active (verified)", "b": "active (verified)"}


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
