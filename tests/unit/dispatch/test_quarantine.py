"""Suspects at the desk: who runs where, who is convicted, and that nobody gets two outcomes."""

import pytest

from dispatcher.dispatch.quarantine import SUSPECT_PAUSE_S, SUSPECTS_ONLY_S, Convicted, Suspected
from dispatcher.model import Answer, Break, BreakKind, CanaryReport, ErrorCode, Grudge, Health, ProbeReport
from dispatcher.pool.effects import GiveUp, Loss
from dispatcher.pool.limits import Portion
from dispatcher.pool.states import Event, State

RESET = Break(BreakKind.RESET)
GIVEN_UP = Break(BreakKind.GIVEN_UP, "its server died")
ERROR = Answer(500, b"")
GRUDGE = Grudge(1, 1 / 16)


class Ward:
    """A desk, and servers that die and come back."""

    def __init__(self, bench):
        self.bench, self.desk, self.pool = bench, bench.desk, bench.pool
        self.found = []

    def carry_out(self, effects):
        for effect in effects:
            if isinstance(effect, GiveUp):
                self._give_up(effect)

    def _give_up(self, effect):
        found = self.desk.server_lost(effect.server, effect.loss)
        self.found += found
        for each in found:
            if isinstance(each, Convicted):
                self.desk.appended(each.lease, each.outcome)
        for attempt in list(self.desk.open.get(effect.server.spec.id, ())):
            attempt.given_up = Break(BreakKind.GIVEN_UP, effect.reason)
            self.bench.end(attempt, GIVEN_UP)

    def kill(self, server, *attempts, ending=RESET):
        """The server dies under these attempts: they break, then nobody answers."""
        for attempt in attempts:
            self.carry_out(self.bench.end(attempt, ending).effects)
        self.carry_out(self.pool.probed(server, ProbeReport(Health.REFUSED)))
        assert server.state is State.EVICTED

    def revive(self, server):
        self.pool.probed(server, ProbeReport(Health.UP))
        self.pool.examined(server, ProbeReport(Health.UP), CanaryReport())
        self.desk.look_everywhere()

    def wait(self, seconds):
        self.bench.time += seconds
        self.desk.look_everywhere()

    def convicted(self):
        return [each.outcome.index for each in self.found if isinstance(each, Convicted)]

    def suspected(self):
        return {each.index: each.grudge for each in self.found if isinstance(each, Suspected)}


@pytest.fixture
def ward(make_desk):
    return Ward(make_desk())


def test_two_deaths_convict_in_a_calm_fleet(ward):
    a, b = ward.bench.admit("a", "b", limit=8)
    ward.bench.admit_shard(count=8)
    first = [attempt for attempt in ward.bench.send() if attempt.server is a]
    ward.wait(0.5)
    ward.kill(a, *first)
    assert {index: grudge.deaths for index, grudge in ward.suspected().items()} == {
        attempt.item.request.index: 1 for attempt in first
    }
    ward.wait(SUSPECT_PAUSE_S)
    (again,) = ward.bench.send()
    assert (again.server, again.item) == (b, first[0].item)
    ward.wait(0.5)
    ward.kill(b, again)
    assert ward.convicted() == [again.item.request.index]
    (outcome,) = [each.outcome for each in ward.found if isinstance(each, Convicted)]
    assert (outcome.code, outcome.message) == (
        ErrorCode.POISON,
        "2 servers died while they had it, the last b; it is sent no more",
    )
    assert (outcome.provenance.server, outcome.provenance.attempts) == ("b", 2)


def test_of_several_processes_one_at_a_time_tries_suspects_at_a_server(make_desk):
    wards = [Ward(make_desk()) for _ in range(2)]
    open_ = [[], []]
    for number, ward in enumerate(wards):
        ward.desk.share_servers(Portion(number, 2))
        ward.bench.admit("a", limit=8)
        ward.bench.admit_shard(count=4, grudges=dict.fromkeys(range(4), GRUDGE))
    for _ in range(400):
        for number, ward in enumerate(wards):
            ward.wait(0.05)
            for attempt in [each for each in open_[number] if ward.bench.time - each.sent_at > 0.6]:
                ward.bench.end(attempt)
                open_[number].remove(attempt)
            open_[number] += ward.bench.send()
            assert sum(map(len, open_)) <= 1
        for ward, other in (wards, wards[::-1]):
            ward.desk.hear_of_suspects(other.desk.suspects_at)
    assert [ward.desk.backlog.ready() for ward in wards] == [False, False], "each has had its turns"


def test_a_death_where_another_process_had_a_suspect_as_well_speaks_against_nobody(ward):
    (a,) = ward.bench.admit("a", limit=8)
    ward.bench.admit_shard(count=1, grudges={0: GRUDGE})
    [attempt] = ward.bench.send()
    ward.desk.hear_of_suspects(["a"])
    ward.kill(a, attempt)
    assert ward.found == []
    ward.revive(a)
    ward.desk.hear_of_suspects([])
    ward.wait(10.0)
    [attempt] = ward.bench.send()
    ward.kill(a, attempt)
    assert ward.convicted() == [0], "by itself, it is"


def test_those_beside_a_convicted_one_are_resent_at_once(ward):
    a, b = ward.bench.admit("a", "b", limit=2)
    ward.bench.admit_shard(count=6, grudges={0: GRUDGE})
    attempts = ward.bench.send()
    guilty = next(attempt for attempt in attempts if attempt.item.suspect)
    died = {"a": a, "b": b}[guilty.server.spec.id]
    ward.kill(died, guilty)
    assert ward.convicted() == [0]
    beside = [index for name, index in ward.bench.sent() if name != died.spec.id]
    assert beside == []
    ward.revive(died)
    assert {name for name, _ in ward.bench.sent()} == {died.spec.id}


def test_suspects_run_one_at_a_time_per_server_beside_other_work(ward):
    ward.bench.admit("a", "b", limit=4)
    ward.bench.admit_shard(count=10, grudges=dict.fromkeys(range(5), GRUDGE))
    attempts = ward.bench.send()
    suspects = [attempt for attempt in attempts if attempt.item.suspect]
    assert [(each.server.spec.id, each.item.request.index) for each in suspects] == [("a", 0), ("b", 1)]
    assert len(attempts) == 7, "five others, and three suspects wait"
    ward.bench.end(suspects[0])
    assert ward.bench.sent() == [("a", 2)]


def test_nobody_else_waits_for_suspects(ward):
    ward.bench.admit("a", limit=4)
    ward.bench.admit_shard(count=8, grudges=dict.fromkeys(range(4), GRUDGE))
    assert [index for _, index in ward.bench.sent()] == [0, 4, 5, 6]


def test_one_that_saw_two_deaths_waits_for_a_server_without_suspects_and_goes_first(ward):
    ward.bench.admit("a", limit=4)
    ward.desk._quarantine._blame._innocent_deaths, ward.desk._quarantine._blame._cleared = 1, 4
    ward.desk.look_everywhere()
    ward.bench.admit_shard(0, count=2, grudges=dict.fromkeys(range(2), GRUDGE))
    first, second = ward.bench.send()
    ward.bench.admit_shard(1, count=2, grudges={2: GRUDGE, 3: Grudge(2, 1 / 16)})
    ward.bench.end(first)
    assert ward.bench.sent() == []
    ward.bench.end(second)
    assert ward.bench.sent() == [("a", 3)], "and 2 is not put beside it"


def test_a_suspect_is_sent_to_another_server_than_it_died_at(ward):
    a, _ = ward.bench.admit("a", "b", limit=1)
    ward.bench.admit_shard(count=1)
    (attempt,) = ward.bench.send()
    ward.kill(a, attempt)
    ward.revive(a)
    ward.wait(SUSPECT_PAUSE_S)
    assert ward.bench.sent() == [("b", 0)]


def test_a_suspect_goes_back_where_there_is_no_elsewhere(ward):
    (a,) = ward.bench.admit("a")
    ward.bench.admit_shard(count=1)
    ward.kill(a, *ward.bench.send())
    ward.wait(SUSPECT_PAUSE_S)
    ward.revive(a)
    assert ward.bench.sent() == [("a", 0)]


def test_where_only_suspects_are_left_they_go_out_in_groups_of_the_root_of_their_number(ward):
    ward.bench.admit("a", limit=8)
    ward.bench.admit_shard(count=17, grudges=dict.fromkeys(range(17), GRUDGE))
    assert len(ward.bench.send()) == 1
    ward.wait(0.25)
    ward.wait(SUSPECTS_ONLY_S - 0.5)
    assert ward.bench.send() == []
    ward.wait(0.5)
    assert len(ward.bench.send()) == 3, "four at a time"


def test_a_server_that_is_doubted_for_a_moment_does_not_begin_the_wait_anew(ward):
    (a,) = ward.bench.admit("a", limit=8)
    ward.bench.admit_shard(count=17, grudges=dict.fromkeys(range(17), GRUDGE))
    assert len(ward.bench.send()) == 1
    ward.wait(0.25)
    ward.wait(SUSPECTS_ONLY_S - 1.0)
    ward.pool._moves.make(a, Event.DOUBTED, "a connection broke")
    ward.wait(0.25)
    ward.pool.examined(a, ProbeReport(Health.UP), CanaryReport())
    ward.wait(0.0)
    ward.wait(0.5)
    assert ward.bench.send() == []
    ward.wait(1.0)
    assert len(ward.bench.send()) == 3


def test_a_fleet_that_is_away_is_not_idle(ward):
    ward.bench.admit_shard(count=16, grudges=dict.fromkeys(range(16), GRUDGE))
    ward.wait(10 * SUSPECTS_ONLY_S)
    ward.bench.admit("a")
    assert len(ward.bench.send()) == 1


def test_a_planned_stop_weighs_nothing(ward):
    a, _ = ward.bench.admit("a", "b")
    ward.bench.admit_shard(count=8)
    ward.bench.send()
    ward.kill(a)
    assert ward.found == []
    assert not any(item.suspect for item in ward.desk.backlog._retries[("m", "job")])


def test_a_stall_weighs_as_a_death(ward):
    (a,) = ward.bench.admit("a")
    ward.bench.admit_shard(count=4)
    ward.bench.send()
    ward.wait(130.0)
    ward.carry_out(ward.pool.look_for_stall(a))
    ward.carry_out(ward.pool.examined(a, ProbeReport(Health.UP), CanaryReport("slow", "no answer")))
    assert a.state is State.EVICTED
    assert {index: grudge.deaths for index, grudge in ward.suspected().items()} == dict.fromkeys(range(4), 1)


def test_a_stall_is_held_against_a_request_only_for_the_time_before_it(ward):
    (a,) = ward.bench.admit("a")
    ward.bench.admit_shard(count=1, grudges={0: GRUDGE})
    (attempt,) = ward.bench.send()
    ward.wait(130.0)
    exposure_s = ward.desk._quarantine._exposure_s(attempt, Loss.HUNG, ward.bench.time)
    assert exposure_s == ward.pool.settings.scrape_interval_s
    assert ward.desk._quarantine._exposure_s(attempt, Loss.DEAD, ward.bench.time) == 130.0
    a.progress_at = attempt.sent_at + 7.0
    assert ward.desk._quarantine._exposure_s(attempt, Loss.HUNG, ward.bench.time) == 12.0


def test_a_connection_that_broke_makes_nobody_a_suspect_where_the_server_lives(ward):
    (a,) = ward.bench.admit("a")
    ward.bench.admit_shard(count=1)
    (attempt,) = ward.bench.send()
    ward.bench.end(attempt, RESET)
    assert (a.state, attempt.item.suspect) == (State.SUSPECT, True)
    ward.pool.examined(a, ProbeReport(Health.UP), CanaryReport())
    ward.desk.server_spared(a)
    assert not attempt.item.suspect
    ward.wait(SUSPECT_PAUSE_S - 0.01)
    assert ward.bench.send() == []
    ward.wait(0.02)
    assert ward.bench.sent() == [("a", 0)]


def test_an_excused_request_no_longer_waits_with_the_suspects(ward):
    a, b = ward.bench.admit("a", "b", limit=4)
    ward.bench.admit_shard(count=3, grudges={0: GRUDGE})
    on_b = next(attempt for attempt in ward.bench.send() if attempt.server is b)
    assert not on_b.item.suspect
    ward.bench.end(on_b, RESET)
    ward.wait(SUSPECT_PAUSE_S)
    assert ward.bench.send() == [], "a has a suspect, and b is one"
    ward.desk.server_spared(b)
    assert ward.bench.sent() == [("a", on_b.item.request.index)]
    assert a.state is State.ACTIVE


def test_an_end_that_comes_after_the_death_was_judged_is_not_held_against_anyone_again(ward):
    """Its answer was on the way when its server was found dead: the next life must not be charged with it."""
    (a,) = ward.bench.admit("a")
    ward.bench.admit_shard(count=2)
    first, second = ward.bench.send()
    ward.bench.end(first, RESET)
    effects = ward.pool.probed(a, ProbeReport(Health.REFUSED))
    ward.desk.server_lost(effects[0].server, effects[0].loss)
    second.given_up = GIVEN_UP
    ward.bench.end(second, RESET)
    assert second.item.accused_at == ()
    ward.pool.probed(a, ProbeReport(Health.UP))
    ward.carry_out(ward.pool.examined(a, ProbeReport(Health.REFUSED), CanaryReport()))
    assert second.item.suspicion.deaths == 1
    assert ward.convicted() == []


def test_a_break_of_a_life_that_has_ended_is_no_evidence(ward):
    (a,) = ward.bench.admit("a")
    ward.bench.admit_shard(count=1)
    (attempt,) = ward.bench.send()
    ward.bench.time += 1
    a.alive_since = ward.bench.time
    ward.bench.end(attempt, RESET)
    assert not attempt.item.suspect


def test_a_convicted_request_has_one_outcome_wherever_it_waits(ward):
    """It waits for its turn, and is accused at a second server whose fate is open."""
    a, b, c = ward.bench.admit("a", "b", "c", limit=1)
    ward.bench.admit_shard(count=1, grudges={0: GRUDGE})
    (on_a,) = ward.bench.send()
    ward.bench.end(on_a, RESET)
    ward.wait(SUSPECT_PAUSE_S)
    (on_b,) = ward.bench.send()
    ward.bench.end(on_b, RESET)
    assert len(ward.desk.backlog) == 1
    ward.kill(a)
    assert ward.convicted() == [0]
    ward.kill(b)
    ward.kill(c)
    assert ward.convicted() == [0]
    assert (len(ward.desk.backlog), ward.desk.unrecorded) == (0, 1)


@pytest.mark.parametrize(
    ("ending", "code"), [(Answer(200, b"{}"), None), (ERROR, ErrorCode.POISON), (GIVEN_UP, ErrorCode.POISON)]
)
def test_one_that_is_convicted_while_it_runs_elsewhere_has_that_attempt_left(ward, ending, code):
    a, b = ward.bench.admit("a", "b", limit=1)
    ward.bench.admit_shard(count=1, grudges={0: GRUDGE})
    (on_a,) = ward.bench.send()
    ward.bench.end(on_a, RESET)
    ward.wait(SUSPECT_PAUSE_S)
    (on_b,) = ward.bench.send()
    ward.kill(a)
    assert ward.convicted() == []
    assert ward.suspected()[0].deaths == 2, "a later run is to know"
    assert ward.bench.end(on_b, ending).outcome.code is code
    assert b.state is State.ACTIVE


def test_a_suspect_whose_lease_was_lost_is_not_convicted(ward):
    a, _ = ward.bench.admit("a", "b", limit=1)
    lease = ward.bench.admit_shard(count=1, grudges={0: GRUDGE})
    (attempt,) = ward.bench.send()
    ward.bench.end(attempt, RESET)
    ward.desk.drop([lease])
    ward.kill(a)
    assert ward.found == []


@pytest.mark.parametrize("ending", [Answer(200, b"{}"), Answer(400, b"")])
def test_a_suspect_that_gets_its_outcome_is_cleared(ward, ending):
    ward.bench.admit("a")
    ward.bench.admit_shard(count=2, grudges=dict.fromkeys(range(2), GRUDGE))
    (attempt,) = ward.bench.send()
    ward.bench.end(attempt, ending)
    assert attempt.item.suspicion is None
    assert ward.bench.sent() == [("a", 1)]


def test_what_a_dying_server_charged_is_refunded(make_desk):
    ward = Ward(make_desk(max_attempts=3))
    a, *_ = ward.bench.admit("a", "b", limit=4)
    ward.bench.admit_shard(count=2)
    attempts = ward.bench.send()
    on_a = next(attempt for attempt in attempts if attempt.server is a)
    ward.bench.end(on_a, ERROR)
    assert (on_a.item.charged, on_a.item.tried) == (1, ("a",))
    ward.kill(a)
    assert (on_a.item.charged, on_a.item.resends, on_a.item.tried) == (0, 1, ())
    assert on_a.item.suspicion.deaths == 1


def test_nothing_is_kept_of_servers_that_are_gone(ward):
    for number in range(50):
        (server,) = ward.bench.admit(f"s{number}")
        ward.bench.admit_shard(
            number, count=2, grudges=dict.fromkeys(range(2 * number, 2 * number + 2), GRUDGE)
        )
        attempts = ward.bench.send()
        ward.bench.end(attempts[0], RESET)
        for attempt in attempts[1:]:
            ward.bench.end(attempt)
        ward.pool.set_members([])
        ward.desk.look_everywhere()
        assert server.state is State.GONE
        ward.bench.admit("last")
        ward.wait(SUSPECT_PAUSE_S)
        while attempts := ward.bench.send():
            for attempt in attempts:
                ward.bench.end(attempt)
        ward.pool.set_members([])
    ward.desk.look_everywhere()
    quarantine = ward.desk._quarantine
    assert (quarantine._at, quarantine._lone_at, quarantine._casualties._rolls) == ({}, set(), {})


def test_a_server_that_gave_a_suspect_an_error_is_given_no_other_until_its_fate_is_known(ward):
    a, _ = ward.bench.admit("a", "b", limit=8)
    ward.bench.admit_shard(count=6, grudges=dict.fromkeys(range(6), GRUDGE))
    on_a, _ = ward.bench.send()
    ward.bench.end(on_a, ERROR)
    assert ward.bench.send() == []
    ward.kill(a)
    assert ward.convicted() == [0]


@pytest.mark.parametrize("known", ["by time", "by a good answer"])
def test_a_server_that_lives_on_after_an_error_is_given_suspects_again(ward, known):
    ward.bench.admit("a", limit=2)
    ward.bench.admit_shard(count=3, grudges=dict.fromkeys(range(2), GRUDGE))
    suspect, other = ward.bench.send()
    ward.bench.end(suspect, ERROR)
    assert ward.bench.send() == []
    if known == "by time":
        ward.wait(SUSPECT_PAUSE_S)
        assert ward.bench.sent() == [("a", 0)]
    else:
        ward.bench.end(other)
        assert ward.bench.sent() == [], "it was sent before the error"
        ward.bench.admit_shard(1, count=1)
        ward.bench.time += 0.1
        (later,) = ward.bench.send()
        ward.bench.end(later)
        assert ward.bench.sent() == [("a", 1)]


@pytest.mark.parametrize("ending", [ERROR, RESET])
def test_a_request_that_met_an_error_waits_for_the_fate_of_its_server(ward, ending):
    ward.bench.admit("a", "b", limit=2)
    ward.bench.admit_shard(count=1)
    ward.bench.end(*ward.bench.send(), ending)
    ward.wait(SUSPECT_PAUSE_S - 0.01)
    assert ward.bench.send() == []
    ward.wait(0.02)
    assert len(ward.bench.send()) == 1


def test_what_broke_of_a_request_that_was_sent_before_an_acquittal_counts(ward):
    """An acquitted server is admitted anew, but its open requests are of the same life."""
    a, _ = ward.bench.admit("a", "b", limit=2)
    ward.bench.admit_shard(count=4)
    first, second = (attempt for attempt in ward.bench.send() if attempt.server is a)
    ward.bench.time += 1
    ward.bench.end(first, RESET)
    ward.pool.examined(a, ProbeReport(Health.UP), CanaryReport())
    ward.desk.server_spared(a)
    ward.bench.time += 1
    ward.bench.end(second, RESET)
    assert a.state is State.SUSPECT
    ward.kill(a)
    assert list(ward.suspected()) == [second.item.request.index]


def copied(ward, original, server):
    """A copy of a request that runs already, as at the end of a job."""
    copy = ward.desk._begin(original.item, server, ward.bench.time)
    copy.is_copy = original.item.hedged = True
    copy.twin, original.twin = original, copy
    return copy


@pytest.mark.parametrize("how", ["it was open when its server died", "it broke first", "it was answered 500"])
def test_where_a_copy_of_a_suspect_runs_no_other_suspect_is_sent(ward, how):
    a, b = ward.bench.admit("a", "b", limit=4)
    ward.bench.admit_shard(count=4)
    original, other = [attempt for attempt in ward.bench.send() if attempt.server is a]
    copy = copied(ward, original, b)
    ward.wait(0.5)
    if how == "it was open when its server died":
        ward.kill(a, other)
    else:
        ward.kill(a, original, other, ending=RESET if how == "it broke first" else ERROR)
    assert original.item.suspect
    ward.wait(2 * SUSPECT_PAUSE_S)
    assert ward.bench.send() == [], "the other suspect waits for it"
    ward.bench.end(copy)
    assert ward.bench.sent() == [("b", other.item.request.index)]


def test_a_server_that_dies_of_a_copy_convicts_it_although_it_was_above_suspicion_when_it_was_sent(ward):
    a, b = ward.bench.admit("a", "b", limit=4)
    ward.bench.admit_shard(count=4)
    original, other = [attempt for attempt in ward.bench.send() if attempt.server is a]
    copy = copied(ward, original, b)
    ward.wait(0.2)
    ward.kill(a, original, other)
    ward.wait(0.2)
    ward.kill(b, copy)
    assert ward.convicted() == [original.item.request.index]
