"""Any sequence of events, however late or senseless, against the pool's promises."""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from prometheus_client import CollectorRegistry

from dispatcher.config import PoolSettings
from dispatcher.model import (
    CanaryFault,
    CanaryReport,
    ErrorCode,
    Health,
    Judgement,
    ProbeReport,
    ServerId,
    ServerSpec,
    Telemetry,
    Verdict,
)
from dispatcher.pool.effects import AttemptEnd, GiveUp, Look, Spared
from dispatcher.pool.pool import Pool
from dispatcher.pool.states import TRANSITIONS, State
from dispatcher.telemetry.metrics import Metrics

NAMES = ["a", "b", "c"]
MODELS = st.one_of(st.none(), st.dictionaries(st.sampled_from("mn"), st.just("root")))
FIGURES = st.one_of(st.none(), st.floats(0, 1e6))
REPORTS = st.builds(
    ProbeReport,
    health=st.sampled_from(Health),
    models=MODELS,
    sleeping=st.sampled_from([None, True, False]),
    started_at=st.one_of(st.none(), st.sampled_from([1.0, 2.0, 3.0])),
)
CANARIES = st.builds(CanaryReport, fault=st.one_of(st.none(), st.sampled_from(CanaryFault)))
TELEMETRY = st.one_of(
    st.none(),
    st.builds(
        Telemetry,
        waiting=FIGURES,
        preemptions_total=FIGURES,
        generation_tokens_total=FIGURES,
        prompt_tokens_total=FIGURES,
        started_at=st.one_of(st.none(), st.sampled_from([1.0, 2.0, 3.0])),
        kv_max_concurrency=FIGURES,
    ),
)
JUDGEMENTS = st.builds(
    Judgement,
    verdict=st.sampled_from(Verdict),
    code=st.sampled_from([None, ErrorCode.MODEL_NOT_FOUND, ErrorCode.SERVER_ERROR]),
    retry_after_s=st.one_of(st.none(), st.floats(0, 600)),
    hard=st.booleans(),
)


class Silence:
    """Thousands of moves are not worth a line each."""

    def debug(self, _event, **_fields):
        pass

    info = warning = debug


class AnyEvents(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.time = 1000.0
        self.metrics = Metrics(CollectorRegistry())
        self.pool = Pool(PoolSettings(stall_s=5), self.metrics, lambda: self.time, Random(5))
        self.pool._log = Silence()
        self.known = []  # every server there ever was, for evidence comes late
        self.open = []
        self.joined("abc")

    def joined(self, names):
        new = self.pool.set_members([ServerSpec(ServerId(name), name) for name in names])
        self.known = [*self.known, *new][-8:]

    def any_server(self, pick):
        return self.known[pick % len(self.known)]

    def check(self, server, effects):
        """A server that is evicted lets its requests go, and effects speak of their server."""
        kinds = GiveUp | Spared | Look
        assert all(isinstance(effect, kinds) and effect.server is server for effect in effects)
        moved = any(isinstance(effect, Look) for effect in effects)
        if moved and server.state is State.EVICTED:
            assert any(isinstance(effect, GiveUp) for effect in effects)

    @rule(names=st.sets(st.sampled_from(NAMES)))
    def the_list_changes(self, names):
        self.joined(sorted(names))

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 61.0, 400.0]))
    def time_passes(self, seconds):
        self.time += seconds

    @rule(count=st.integers(1, 20), pick=st.integers(0, 9))
    def requests_are_sent(self, count, pick):
        server = self.any_server(pick)
        for _ in range(min(count, server.permits_free(self.time))):
            server.took(self.time)
            self.open.append((server, self.time))

    @rule(pick=st.integers(0, 999), judgement=JUDGEMENTS, repeated=st.booleans(), ours=st.booleans())
    def an_attempt_ends(self, pick, judgement, repeated, ours):
        if not self.open:
            return
        server, sent_at = self.open.pop(pick % len(self.open))
        server.gave_back(float("inf"))
        if ours:
            self.pool.attempt_given_up(server)
        else:
            end = AttemptEnd(judgement, sent_at, "m", repeated)
            self.check(server, self.pool.attempt_ended(server, end))

    @rule(pick=st.integers(0, 9), judgement=JUDGEMENTS)
    def an_attempt_ends_long_after_its_permit_came_back(self, pick, judgement):
        server = self.any_server(pick)
        self.check(server, self.pool.attempt_ended(server, AttemptEnd(judgement, self.time, "m")))

    @rule(pick=st.integers(0, 9), report=REPORTS, refreshed=st.booleans())
    def a_probe_returns(self, pick, report, refreshed):
        server = self.any_server(pick)
        told = self.pool.refreshed if refreshed else self.pool.probed
        self.check(server, told(server, report))

    @rule(pick=st.integers(0, 9), report=REPORTS, canary=CANARIES, progress=st.booleans())
    def an_examination_returns(self, pick, report, canary, progress):
        server = self.any_server(pick)
        self.check(server, self.pool.examined(server, report, canary, progress=progress))

    @rule(pick=st.integers(0, 9), started_at=st.sampled_from([None, 1.0]))
    def a_server_is_verified(self, pick, started_at):
        server = self.any_server(pick)
        good = ProbeReport(Health.UP, started_at=started_at)
        self.pool.probed(server, good)
        self.pool.examined(server, good, CanaryReport())

    @rule(pick=st.integers(0, 9), telemetry=TELEMETRY)
    def a_scrape_returns(self, pick, telemetry):
        server = self.any_server(pick)
        self.check(server, self.pool.scraped(server, telemetry))
        self.check(server, self.pool.look_for_stall(server))

    @invariant()
    def permits_are_counted(self):
        for server in self.known:
            assert server.in_flight >= sum(holder is server for holder, _ in self.open) >= 0
            assert server.limit.permits(self.time) >= 1
            if server.state is not State.ACTIVE:
                assert server.permits_free(self.time) == 0

    @invariant()
    def members_are_those_that_are_not_gone(self):
        assert all(server.state is not State.GONE for server in self.pool.servers.values())
        assert all(server.in_flight > 0 for server in self.known if server.state is State.DRAINING)

    @invariant()
    def only_members_have_metrics(self):
        families = vars(self.metrics._server_families).values()
        labelled = {labels[0] for family in families for labels in family._metrics}
        assert labelled == set(self.pool.servers)

    @invariant()
    def every_move_was_legal_and_the_next_look_is_not_forgotten(self):
        for server in self.known:
            assert all(TRANSITIONS[move.before, move.event] is move.after for move in server.machine.history)
            assert server.next_check_at <= self.time + 60
            assert server.setbacks >= 0


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
