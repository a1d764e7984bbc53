import pytest

from dispatcher.model import ServerId, ServerSpec
from dispatcher.pool.limits import FixedLimit
from dispatcher.pool.server import Server
from dispatcher.pool.states import Event, State

WAYS = {
    State.JOINING: (),
    State.VERIFYING: (Event.ANSWERED,),
    State.ACTIVE: (Event.ANSWERED, Event.VERIFIED),
    State.SUSPECT: (Event.ANSWERED, Event.VERIFIED, Event.DOUBTED),
    State.EVICTED: (Event.ANSWERED, Event.VERIFIED, Event.DIED),
    State.DRAINING: (Event.WITHDRAWN,),
}


@pytest.fixture
def server():
    """Makes a server that has come to a state, `reason` being why; it has a limit of 8, ramped up."""

    def make(name, state=State.ACTIVE, reason="said so", now=0.0):
        made = Server(ServerSpec(ServerId(name), name), FixedLimit(8), now)
        for event in WAYS[state]:
            made.machine.move(event, reason, now)
        return made

    return make
