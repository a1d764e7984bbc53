"""Whether there is, or may come, a server for a live request: what its client is told at once."""

from enum import Enum, auto

from dispatcher.pool.pool import Pool
from dispatcher.pool.server import Server
from dispatcher.pool.states import State

SOON = (State.SUSPECT, State.VERIFYING)
"""Where a server is that may be back in rotation within a canary's time."""


class Prospect(Enum):
    """What a request for a model may hope for."""

    SERVED = auto()  # a server in rotation has it, busy or not
    SOON = auto()  # one is being asked for its canary
    LATER = auto()  # those that may have it are out of rotation, or not up yet
    NEVER = auto()  # nobody lists it


def prospect_of(pool: Pool, model: str | None) -> Prospect:
    """What the servers' states, and what they list, say of a model."""
    if pool.can_serve(model):
        return Prospect.SERVED
    able = [server for server in pool.servers.values() if _may_have(server, model)]
    if any(server.state in SOON for server in able):
        return Prospect.SOON
    return Prospect.LATER if able or not pool.servers else Prospect.NEVER


def _may_have(server: Server, model: str | None) -> bool:
    """Whether it serves this model as far as is known: one that has not been asked yet may."""
    named = model is None or server.models is None or model in server.models
    return named and server.state not in (State.DRAINING, State.GONE)
