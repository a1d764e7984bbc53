"""What is wrong with this machine never counts against a server: the pool's part of that."""

import pytest

from dispatcher.model import CanaryFault, CanaryReport, Health, ProbeReport, Verdict
from dispatcher.pool.effects import GiveUp, Look, Spared
from dispatcher.pool.states import State
from dispatcher.telemetry.absences import BEAT_S

UP = ProbeReport(Health.UP)
UNASKED = CanaryReport(CanaryFault.UNASKED, "no resolver")
WRONG = CanaryReport(CanaryFault.WRONG, "answered 'five', where 'four' was to be heard")


def beats(fleet, seconds):
    """Time goes by, and the loop runs."""
    for _ in range(round(seconds / BEAT_S)):
        fleet.time += BEAT_S
        fleet.absences.beat()


@pytest.fixture
def fleet(make_fleet):
    fleet = make_fleet(stall_s=2)
    fleet.absences.beat()
    return fleet


def test_a_local_fault_of_an_attempt_says_nothing_about_the_server(fleet):
    server = fleet.admit()
    for _ in range(100):
        assert fleet.end(server, Verdict.LOCAL_FAULT) == ()
    assert server.state is State.ACTIVE
    assert server.record.failed == 0


def test_a_server_to_which_no_way_leads_is_given_nothing_and_has_no_fault_on_record(fleet):
    server = fleet.admit()
    assert fleet.end(server, Verdict.LOCAL_FAULT, offline=True) == (Look(server),)
    assert server.state is State.SUSPECT
    assert server.record.failed == 0
    assert server.permits_free(fleet.time) == 0


def test_while_no_way_leads_there_a_whole_fleet_keeps_its_servers_and_their_open_requests(fleet):
    servers = [fleet.admit(name) for name in "abc"]
    for server in servers:
        fleet.load(server, 3)
        fleet.end(server, Verdict.LOCAL_FAULT, offline=True)
    for _ in range(50):
        beats(fleet, 2)
        for server in servers:
            assert fleet.pool.examined(server, ProbeReport(Health.UNASKED), UNASKED) == ()
            assert server.next_check_at >= fleet.time + fleet.pool.settings.readmit_backoff_min_s
    assert [server.state for server in servers] == [State.SUSPECT] * 3
    for server in servers:
        assert fleet.pool.examined(server, UP, CanaryReport()) == (Spared(server), Look(server))
        assert server.state is State.ACTIVE


def test_what_could_not_be_looked_at_lengthens_no_back_off(fleet):
    server = fleet.admit()
    fleet.evict(server)
    setbacks = server.setbacks
    for _ in range(5):
        assert fleet.pool.probed(server, ProbeReport(Health.UNASKED, "no resolver")) == ()
    assert (server.state, server.setbacks) == (State.EVICTED, setbacks)
    assert server.next_check_at > fleet.time


def test_a_joining_server_that_cannot_be_asked_says_why(fleet):
    (server,) = fleet.join("s")
    fleet.pool.probed(server, ProbeReport(Health.UNASKED, "no resolver"))
    assert server.reason == "not answered yet: no resolver"


@pytest.mark.parametrize("state", [State.PAUSED, State.MISMATCHED])
def test_a_server_out_of_service_that_cannot_be_asked_stays_where_it_is(fleet, state):
    server = fleet.admit()
    server.machine.state = state
    assert fleet.pool.examined(server, UP, UNASKED) == ()
    assert server.state is state


# We stood still


def test_the_stall_clock_does_not_run_while_we_stand_still(fleet):
    server = fleet.admit()
    fleet.load(server)
    beats(fleet, 1)
    fleet.time += 60
    assert fleet.pool.look_for_stall(server) == (), "although no beat has noticed it yet"
    fleet.absences.beat()
    beats(fleet, 0.75)
    assert fleet.pool.look_for_stall(server) == ()
    beats(fleet, 0.25)
    assert fleet.pool.look_for_stall(server) == (Look(server),)


def test_a_suspect_is_not_given_up_for_the_time_that_we_stood_still(fleet):
    server = fleet.admit()
    fleet.load(server)
    server.tokens_seen = 5.0
    fleet.suspect(server)
    fleet.time += 60
    assert fleet.pool.examined(server, UP, CanaryReport()) == (Spared(server), Look(server))


def test_a_busy_loop_is_no_excuse_for_a_stall(fleet):
    server = fleet.admit()
    fleet.load(server)
    for _ in range(4):
        fleet.time += 0.5
        fleet.absences.beat()
    assert fleet.pool.look_for_stall(server) == (Look(server),)


# Wrong answers


def test_what_a_server_with_a_wrong_answer_is_answering_is_given_up(fleet):
    server = fleet.admit()
    fleet.load(server, 2)
    assert fleet.pool.reminded(server, WRONG) == (
        GiveUp(server, WRONG.detail),
        Spared(server),
        Look(server),
    )
    assert (server.state, server.reason) == (State.MISMATCHED, WRONG.detail)
    assert server.record.evictions == 0


def test_a_suspect_with_a_wrong_answer_is_out_with_all_that_it_was_answering(fleet):
    server = fleet.admit()
    fleet.load(server)
    fleet.suspect(server)
    assert fleet.pool.examined(server, UP, WRONG)[0] == GiveUp(server, WRONG.detail)
    assert server.state is State.MISMATCHED


def test_a_server_that_lacks_the_model_keeps_its_open_requests(fleet):
    server = fleet.admit()
    fleet.load(server)
    effects = fleet.pool.reminded(server, CanaryReport(CanaryFault.MISMATCHED, "404"))
    assert server.state is State.MISMATCHED
    assert GiveUp not in map(type, effects)


@pytest.mark.parametrize("state", [State.EVICTED, State.DRAINING, State.GONE])
def test_a_server_that_is_lost_already_is_not_moved_by_what_it_said(fleet, state):
    server = fleet.admit()
    server.machine.state = state
    assert fleet.pool.reminded(server, WRONG) == ()
    assert server.state is state
