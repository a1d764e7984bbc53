"""Any interleaving of sends, endings, durable outcomes and lost leases: one outcome a request."""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from dispatcher.config import DispatchSettings, PoolSettings
from dispatcher.dispatch.ceiling import Ceiling
from dispatcher.dispatch.desk import Desk
from dispatcher.model import (
    AgainReason,
    Answer,
    Break,
    BreakKind,
    CanaryReport,
    Health,
    Job,
    JobId,
    Judgement,
    Lease,
    ProbeReport,
    Request,
    ServerId,
    ServerSpec,
    Shard,
    Tally,
    Verdict,
)
from dispatcher.pool.pool import Pool
from dispatcher.pool.states import State
from dispatcher.ports import Counted, Replay, Unfinished, Unusable
from dispatcher.telemetry.metrics import Metrics

JOB = Job(JobId("job"))
COUNT = 5
ENDINGS = st.one_of(
    st.just(Answer(200, b"{}")),
    st.builds(Answer, status=st.sampled_from([verdict.value for verdict in Verdict]), body=st.just(b"{}")),
    st.just(Break(BreakKind.GIVEN_UP, "closed")),
)


def judge(ending, request, models, *, healthy=None):
    """The status says the verdict."""
    if isinstance(ending, Break):
        return Judgement(Verdict.SERVER_FAULT)
    verdict = Verdict.SUCCESS if ending.status == 200 else Verdict(ending.status)
    return Judgement(verdict, hard=healthy is False, body=ending.body)


class Silence:
    """Thousands of moves are not worth a line each."""

    def debug(self, _event, **_fields):
        pass

    info = warning = debug


def ask_on(request, judgement, asked):
    """A review that asks again, asks further, gives up or counts another body: by the row and its turn."""
    other = replace(request, body=b"[]" if request.body == b"{}" else b"{}")
    turn = (request.index + 2 * asked.times) % 5
    if asked.notes is not None:
        so_far = None if turn == 0 else b"{}"
        return Counted(b"{}") if asked.notes > 2 else Unfinished(other, so_far, asked.notes + 1)
    match turn:
        case 0 | 1 if asked.times < 2:
            return Unusable("bad", other, AgainReason.CUT)
        case 2 | 4:
            return Unfinished(other, None, 1)
        case 3:
            return Unusable("bad", None)
    return None


class AnyInterleaving(RuleBasedStateMachine):
    review = None

    def __init__(self):
        super().__init__()
        self.time = 1000.0
        self.pool = Pool(PoolSettings(limit=3), Metrics(CollectorRegistry()), lambda: self.time, Random(5))
        self.pool._log = Silence()
        self.ceiling = Ceiling(50)
        self.desk = Desk(
            self.pool,
            judge,
            DispatchSettings(free_resends_max=3),
            self.ceiling,
            Metrics(CollectorRegistry()),
            lambda: self.time,
            self.review,
        )
        self.pool.set_members([ServerSpec(ServerId(name), name) for name in "ab"])
        self.open = []
        self.journal = {}  # shard -> indexes with an outcome, which is what a resume finds there
        self.leases = {}  # shard -> the lease in hand
        self.epochs = {}
        self.settled = set()
        self.make_servers_well()

    def make_servers_well(self):
        good = ProbeReport(Health.UP)
        for server in self.pool.servers.values():
            self.pool.probed(server, good)
            self.pool.examined(server, good, CanaryReport())
        self.time += 1
        self.ceiling.tick(self.time)
        self.desk.look_everywhere()

    def lease(self, number):
        self.epochs[number] = self.epochs.get(number, 0) + 1
        lease = Lease(JOB, Shard(number, number * COUNT, COUNT, 0, 0), self.epochs[number])
        done = frozenset(self.journal.setdefault(number, set()))
        first = number * COUNT
        requests = [
            Request(index, f"row-{index}", "/v1", "m", b"{}") for index in range(first, first + COUNT)
        ]
        shard = self.desk.admit(lease, requests, Replay(done, Tally(succeeded=len(done))))
        self.leases[number] = lease
        if shard.complete:
            self.settle(number)

    def settle(self, number):
        self.desk.shards.remove(self.leases.pop(number))
        self.settled.add(number)

    def record(self, number, count):
        lease = self.leases[number]
        shard = self.desk.shards.get(lease)
        shard, outcomes = self.desk.recorded(lease, min(count, shard.unrecorded))
        assert {outcome.index for outcome in outcomes} <= self.journal[number]
        if shard.complete:
            self.settle(number)

    def end(self, pick, ending, healthy):
        attempt = self.open.pop(pick % len(self.open))
        self.desk.release(attempt)
        outcome = self.desk.attempt_ended(attempt, ending, healthy=healthy).outcome
        if outcome is not None:
            number = attempt.item.lease.shard.number
            assert attempt.item.lease is self.leases[number], "an outcome of a lease that is not in hand"
            assert outcome.index not in self.journal[number], "a second outcome"
            self.journal[number].add(outcome.index)
            self.desk.appended(attempt.item.lease, outcome)

    @rule(number=st.integers(0, 5))
    def a_shard_is_leased(self, number):
        if number not in self.leases and number not in self.settled:
            self.lease(number)

    @rule(numbers=st.sets(st.integers(0, 5)))
    def leases_are_lost(self, numbers):
        lost = [self.leases.pop(number) for number in sorted(numbers) if number in self.leases]
        closed = self.desk.drop(lost)
        assert {id(attempt.item.lease) for attempt in closed} <= {id(lease) for lease in lost}

    @rule()
    def requests_are_sent(self):
        self.open.extend(self.desk.assign())

    @rule(pick=st.integers(0, 99), ending=ENDINGS, healthy=st.sampled_from([None, True, False]))
    def an_attempt_ends(self, pick, ending, healthy):
        if self.open:
            self.end(pick, ending, healthy)

    @rule(number=st.integers(0, 5), count=st.integers(1, 5))
    def outcomes_become_durable(self, number, count):
        if number in self.leases:
            self.record(number, count)

    @rule(seconds=st.sampled_from([0.2, 5.0]))
    def time_passes(self, seconds):
        self.time += seconds
        self.desk.look_everywhere()

    @rule()
    def servers_get_well(self):
        self.make_servers_well()

    @invariant()
    def everything_is_somewhere(self):
        """Each request of a shard in hand waits, or is at a server, or has its outcome."""
        owed = sum(COUNT - len(self.journal[number]) for number in self.leases)
        ours = [
            attempt
            for attempt in self.open
            if self.leases.get(attempt.item.lease.shard.number) is attempt.item.lease
        ]
        assert len(self.desk.backlog) + len(ours) == owed

    @invariant()
    def counters_agree(self):
        assert self.desk.in_flight == len(self.open) == len(self.desk.open_attempts())
        assert sum(server.in_flight for server in self.pool.servers.values()) == len(self.open)
        assert self.desk.unrecorded == sum(shard.unrecorded for shard in self.desk.shards)
        assert self.desk.backlog.body_bytes == 2 * len(self.desk.backlog)

    def teardown(self):
        """However it went: with well servers every shard is finished, and nothing is left."""
        for number in range(6):
            self.a_shard_is_leased(number)
        for _ in range(500):
            if not self.leases:
                break
            self.make_servers_well()
            self.requests_are_sent()
            while self.open:
                self.end(0, Answer(200, b"{}"), None)
            for number in list(self.leases):
                self.record(number, COUNT)
        assert not self.leases
        assert self.journal == {
            number: set(range(number * COUNT, (number + 1) * COUNT)) for number in range(6)
        }
        assert (len(self.desk.backlog), self.desk.backlog.body_bytes) == (0, 0)
        assert (self.desk.in_flight, self.desk.open, self.desk.unrecorded) == (0, {}, 0)
        assert self.desk._unrecorded.body_bytes == 0
        assert all(server.state is State.ACTIVE for server in self.pool.servers.values())


class AnyInterleavingOfQuestions(AnyInterleaving):
    """The same where an answer may lead to another question about its row."""

    review = staticmethod(ask_on)


TestAnyInterleavingOfQuestions = AnyInterleavingOfQuestions.TestCase
TestAnyInterleavingOfQuestions.settings = settings(max_examples=20, stateful_step_count=50, deadline=None)
TestAnyInterleaving = AnyInterleaving.TestCase
TestAnyInterleaving.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
