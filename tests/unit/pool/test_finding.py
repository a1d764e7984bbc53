"""What an inspection and a canary say of a server that is not in rotation: every case of it."""

import pytest

from dispatcher.config import PoolSettings
from dispatcher.model import CanaryFault, CanaryReport, Health, ProbeReport
from dispatcher.pool.finding import finding_of
from dispatcher.pool.states import Event, State

UP = ProbeReport(Health.UP)
KNOWN = PoolSettings(canary={"messages": [{"role": "user", "content": "2+2?"}], "expect": "four"})
ONE_TOKEN = PoolSettings()
NONE = PoolSettings(canary=False)
OUT = (State.VERIFYING, State.SUSPECT, State.PAUSED, State.MISMATCHED)
NOTHING = "nothing"


@pytest.fixture
def in_state(fleet):
    """Makes a server that stands there."""

    def make(state):
        server = fleet.admit()
        server.machine.state, server.machine.since = state, fleet.time
        return server

    return make


def found(server, fault=None, settings=ONE_TOKEN, report=UP, *, stalled=False):
    canary = CanaryReport(fault, "" if fault is None else "said so")
    finding = finding_of(server, report, canary, settings, stalled=stalled)
    return NOTHING if finding is None else finding[0]


@pytest.mark.parametrize("settings", [ONE_TOKEN, KNOWN, NONE])
@pytest.mark.parametrize("state", OUT)
def test_a_server_that_answers_well_is_verified(in_state, state, settings):
    assert found(in_state(state), settings=settings) is Event.VERIFIED


@pytest.mark.parametrize("settings", [ONE_TOKEN, KNOWN])
@pytest.mark.parametrize("state", OUT)
@pytest.mark.parametrize(
    ("fault", "event"),
    [
        (CanaryFault.FAILED, Event.FAILED),
        (CanaryFault.DEAD, Event.DIED),
        (CanaryFault.SLOW, Event.FAILED),
        (CanaryFault.UNASKED, NOTHING),
        (CanaryFault.MISMATCHED, Event.MISMATCHED),
        (CanaryFault.WRONG, Event.MISMATCHED),
    ],
)
def test_a_canary_s_fault_decides(in_state, state, settings, fault, event):
    assert found(in_state(state), fault, settings) is event


@pytest.mark.parametrize(
    ("state", "settings", "event"),
    [
        *((state, ONE_TOKEN, Event.VERIFIED) for state in OUT),
        (State.SUSPECT, KNOWN, Event.VERIFIED),
        (State.VERIFYING, KNOWN, Event.FAILED),
        (State.PAUSED, KNOWN, Event.FAILED),
        (State.MISMATCHED, KNOWN, Event.FAILED),
    ],
)
def test_busy_is_alive_but_no_answer_to_a_question_that_was_never_answered(in_state, state, settings, event):
    assert found(in_state(state), CanaryFault.BUSY, settings) is event


@pytest.mark.parametrize("settings", [ONE_TOKEN, KNOWN])
def test_a_suspect_at_work_may_be_too_slow_for_a_canary(fleet, in_state, settings):
    server = in_state(State.SUSPECT)
    fleet.load(server)
    assert found(server, CanaryFault.SLOW, settings) is Event.FAILED
    server.progress_at = fleet.time + 1
    assert found(server, CanaryFault.SLOW, settings) is Event.VERIFIED
    server.gave_back(float("inf"))
    assert found(server, CanaryFault.SLOW, settings) is Event.FAILED


@pytest.mark.parametrize("state", OUT)
@pytest.mark.parametrize("health", [Health.DOWN, Health.REFUSED])
def test_hard_evidence_is_above_every_canary(in_state, state, health):
    assert found(in_state(state), report=ProbeReport(health)) is Event.DIED


@pytest.mark.parametrize("fault", [None, CanaryFault.UNASKED])
def test_a_sleeping_server_is_asked_nothing_and_paused(in_state, fault):
    assert found(in_state(State.SUSPECT), fault, report=ProbeReport(Health.UP, sleeping=True)) is Event.SLEPT


@pytest.mark.parametrize("state", OUT)
@pytest.mark.parametrize(
    ("health", "event"),
    [
        (Health.UP, Event.VERIFIED),
        (Health.ABSENT, Event.VERIFIED),
        (Health.UNREACHABLE, Event.FAILED),
        (Health.UNASKED, NOTHING),
    ],
)
def test_without_a_canary_health_decides(in_state, state, health, event):
    server = in_state(state)
    assert found(server, settings=NONE, report=ProbeReport(health)) is event
    if event is Event.VERIFIED:
        assert found(server, settings=NONE, report=ProbeReport(health), stalled=True) is Event.FAILED


@pytest.mark.parametrize("state", OUT)
def test_without_a_canary_a_slow_answer_is_enough_for_a_suspect_alone(in_state, state):
    event = Event.VERIFIED if state is State.SUSPECT else Event.FAILED
    assert found(in_state(state), settings=NONE, report=ProbeReport(Health.SLOW)) is event


@pytest.mark.parametrize("health", [Health.SLOW, Health.UNASKED, Health.UNREACHABLE, Health.ABSENT])
def test_a_good_canary_needs_no_health_beside_it(in_state, health):
    assert found(in_state(State.VERIFYING), report=ProbeReport(health)) is Event.VERIFIED
