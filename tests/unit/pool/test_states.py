import pytest

from dispatcher.errors import IllegalTransitionError
from dispatcher.pool.states import HISTORY_MAX, TRANSITIONS, Event, Machine, State

ALL = [(state, event) for state in State for event in Event]


def machine_in(state):
    machine = Machine(1.0)
    machine.state = state
    return machine


@pytest.mark.parametrize(("state", "event"), [move for move in ALL if move in TRANSITIONS])
def test_a_move_of_the_table_leads_where_it_says_and_is_remembered(state, event):
    machine = machine_in(state)
    assert machine.allows(event)
    move = machine.move(event, "because", 5.0)
    assert (move.before, move.event, move.after) == (state, event, TRANSITIONS[state, event])
    assert (machine.state, machine.since, machine.reason) == (move.after, 5.0, "because")
    assert list(machine.history) == [move]


@pytest.mark.parametrize(("state", "event"), [move for move in ALL if move not in TRANSITIONS])
def test_any_other_move_raises_and_changes_nothing(state, event):
    machine = machine_in(state)
    assert not machine.allows(event)
    with pytest.raises(IllegalTransitionError, match=f"no move {event} from {state}"):
        machine.move(event, "because", 5.0)
    assert (machine.state, machine.since, list(machine.history)) == (state, 1.0, [])


def test_an_illegal_move_is_told_with_the_servers_history():
    machine = Machine(0.0)
    machine.move(Event.ANSWERED, "answers", 1.0)
    machine.move(Event.DIED, "refused", 2.0)
    with pytest.raises(
        IllegalTransitionError, match=r"joining -answered-> verifying \(answers\); verifying -died"
    ):
        machine.move(Event.SLEPT, "asleep", 3.0)


def test_the_history_is_bounded():
    machine = Machine(0.0)
    machine.move(Event.ANSWERED, "answers", 0.0)
    for at in range(HISTORY_MAX):
        machine.move(Event.DIED, "refused", at)
        machine.move(Event.ANSWERED, "answers", at)
    assert len(machine.history) == HISTORY_MAX


def test_only_verification_admits_a_server():
    admitting = {event for (_, event), after in TRANSITIONS.items() if after is State.ACTIVE}
    assert admitting == {Event.VERIFIED}
    assert (State.EVICTED, Event.VERIFIED) not in TRANSITIONS
    assert (State.JOINING, Event.VERIFIED) not in TRANSITIONS


def test_every_state_but_the_last_can_be_withdrawn_and_every_state_can_be_reached():
    leaving = {state for state, event in TRANSITIONS if event is Event.WITHDRAWN}
    assert leaving == set(State) - {State.DRAINING, State.GONE}
    assert set(TRANSITIONS.values()) == set(State) - {State.JOINING}
    assert not [event for state, event in TRANSITIONS if state is State.GONE]


def test_a_server_that_never_answered_says_so():
    assert Machine(0.0).reason == "not answered yet"
