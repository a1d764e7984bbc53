"""One killer in a calm fleet, under any weather: it is convicted, and no other row is."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from dispatcher.config import DispatchSettings, PoolSettings
from dispatcher.dispatch.ceiling import Ceiling
from dispatcher.dispatch.desk import Desk
from dispatcher.dispatch.quarantine import Convicted
from dispatcher.model import (
    Answer,
    Break,
    BreakKind,
    CanaryReport,
    ErrorCode,
    Health,
    Job,
    JobId,
    Lease,
    ProbeReport,
    Request,
    ServerId,
    ServerSpec,
    Shard,
)
from dispatcher.pool.effects import GiveUp, Spared
from dispatcher.pool.pool import Pool
from dispatcher.pool.states import State
from dispatcher.ports import Replay
from dispatcher.telemetry.metrics import Metrics
from dispatcher.vllm.verdicts import judge

OK = Answer(200, b'{"model":"m","choices":[{"index":0,"text":"x","finish_reason":"stop"}]}')
RESET = Break(BreakKind.RESET)
DYING = [
    RESET,
    Answer(
        500,
        b'{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","code":500}}',
    ),
    Answer(500, b""),
]
STEPS_MAX = 5000


class Silence:
    def debug(self, _event, **_fields):
        pass

    info = warning = debug


class Fleet:
    """Servers that answer, break connections and are stopped as the weather has it, and die of one row."""

    def __init__(self, servers, permits, rows, killer, random):
        self.time, self.random, self.killer, self.deaths = 1000.0, random, killer, 0
        metrics = Metrics(CollectorRegistry())
        self.pool = Pool(PoolSettings(limit=permits), metrics, lambda: self.time, Random(5))
        self.pool._log = Silence()
        self.desk = Desk(self.pool, judge, DispatchSettings(), Ceiling(999), metrics, lambda: self.time)
        self.pool.set_members([ServerSpec(ServerId(str(number)), str(number)) for number in range(servers)])
        self.lease = Lease(Job(JobId("job")), Shard(0, 0, rows, 0, 0), 1)
        requests = [Request(index, f"row-{index}", "/v1/completions", "m", b"{}") for index in range(rows)]
        self.desk.admit(self.lease, requests, Replay())
        self.outcomes = {}
        self.revive()

    def revive(self):
        """Whoever is out or doubted is looked at, and is well."""
        for server in self.pool.servers.values():
            self.pool.probed(server, ProbeReport(Health.UP))
            if server.state in (State.VERIFYING, State.SUSPECT):
                self.carry_out(self.pool.examined(server, ProbeReport(Health.UP), CanaryReport()))
        self.desk.look_everywhere()

    def step(self):
        self.time += self.random.choice([0.05, 0.5, 2.0])
        for _ in self.desk.assign():
            pass
        attempts = self.desk.open_attempts()
        for attempt in self.random.sample(attempts, self.random.randint(0, len(attempts))):
            if attempt in self.desk.open.get(attempt.server.spec.id, ()):
                self.end_somehow(attempt)
        if self.random.random() < 0.5:
            self.revive()

    def end_somehow(self, attempt):
        if attempt.item.request.index == self.killer:
            self.kill(attempt.server)
        elif self.random.random() < 0.05:
            self.end(attempt, RESET)
        elif self.random.random() < 0.02:
            self.revive()  # a break and then a refusal would be a death, and the fleet not calm
            self.refuse(attempt.server)
        else:
            self.end(attempt, OK)

    def kill(self, server):
        """Some of what is open breaks before the death is known, the killer for one; the rest does not."""
        self.deaths += 1
        ending = self.random.choice(DYING)
        attempts = sorted(
            self.desk.open[server.spec.id], key=lambda each: each.item.request.index != self.killer
        )
        for attempt in attempts[: self.random.randint(1, len(attempts))]:
            if attempt in self.desk.open.get(server.spec.id, ()):
                self.end(attempt, ending)
        self.refuse(server)

    def refuse(self, server):
        self.carry_out(self.pool.probed(server, ProbeReport(Health.REFUSED)))

    def end(self, attempt, ending):
        self.desk.release(attempt)
        ended = self.desk.attempt_ended(attempt, ending, healthy=None)
        self.carry_out(ended.effects)
        if ended.outcome is not None:
            self.record(ended.outcome)

    def carry_out(self, effects):
        for effect in effects:
            if isinstance(effect, Spared):
                self.desk.server_spared(effect.server)
            elif isinstance(effect, GiveUp):
                for found in self.desk.server_lost(effect.server, effect.loss):
                    if isinstance(found, Convicted):
                        self.record(found.outcome)
                for attempt in list(self.desk.open.get(effect.server.spec.id, ())):
                    attempt.given_up = Break(BreakKind.GIVEN_UP, effect.reason)
                    self.end(attempt, Break(BreakKind.GIVEN_UP, effect.reason))

    def record(self, outcome):
        assert outcome.index not in self.outcomes, "a second outcome"
        self.outcomes[outcome.index] = outcome.code
        self.desk.appended(self.lease, outcome)


@given(
    servers=st.integers(2, 5),
    permits=st.integers(1, 8),
    rows=st.integers(1, 80),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None)
def test_one_killer_in_a_calm_fleet_is_convicted_and_nobody_else(servers, permits, rows, seed):
    random = Random(seed)
    fleet = Fleet(servers, permits, rows, random.randrange(rows), random)
    for _ in range(STEPS_MAX):
        if len(fleet.outcomes) == rows:
            break
        fleet.step()
    assert fleet.outcomes == {
        index: ErrorCode.POISON if index == fleet.killer else None for index in range(rows)
    }
    assert fleet.deaths <= 3, "two, or three where suspects went out in groups"
    quarantine = fleet.desk._quarantine
    assert (quarantine._at, quarantine._lone_at) == ({}, set())
    assert len(fleet.desk.backlog) == fleet.desk.in_flight == 0
