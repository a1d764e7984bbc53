"""Why a server stands where it stands, for viewers who may not read its words: they may quote a request."""

from collections.abc import Mapping
from typing import Final

from dispatcher.pool.server import Server
from dispatcher.pool.states import Event

NOT_YET: Final = "not answered yet"
KINDS: Final[Mapping[Event, str]] = {
    Event.ANSWERED: "answers, and is being examined",
    Event.VERIFIED: "verified",
    Event.FAILED: "did not pass its examination",
    Event.DOUBTED: "its answers are in doubt",
    Event.DIED: "died",
    Event.SLEPT: "asleep",
    Event.MISMATCHED: "refuses the key, or is not the model that it lists",
    Event.RESTARTED: "restarted",
    Event.WITHDRAWN: "withdrawn",
    Event.RETURNED: "listed again",
    Event.DRAINED: "drained",
}
"""What happened, without a word of the server's."""


def reason_of(server: Server, *, texts: bool) -> str:
    """In the server's own words with `texts`, else by kind alone."""
    if texts:
        return server.reason
    history = server.machine.history
    return KINDS[history[-1].event] if history else NOT_YET
