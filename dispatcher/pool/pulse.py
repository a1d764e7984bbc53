"""Signs that a server in rotation should be looked at before its turn. Pure.

A look every few seconds finds out too late about a server that has just been stopped: its listener is closed
and its open requests stay silent, so that no permit comes free, and nobody is refused there.
"""

from dispatcher.pool.server import Server

PULSE_S = 0.25
"""How often the signs are looked for."""
SILENCE_S_MIN = 0.5
SILENCE_ANSWERS = 4.0
"""A server has fallen silent when four times the usual time between two of its answers has passed without
one. With answers that come at random, one pause in fifty is as long; each costs one look at most."""
DYING_S = 0.5
"""A plain error may be an engine's last word. Its server still answers for a moment (0.3 s was seen on vLLM
0.32.0): it is looked at when that must be over, and before the request is sent elsewhere."""


def wants_look(server: Server, now: float) -> bool:
    """Whether this server, of which nothing is known since its latest look, should be looked at now."""
    return _fell_silent(server, now) or is_dying_or_not(server, now)


def _fell_silent(server: Server, now: float) -> bool:
    if server.answered_at is None or not server.in_flight:
        return False
    usual_s = (server.answer_s or 0.0) / server.in_flight
    silent_from = server.answered_at + max(SILENCE_S_MIN, SILENCE_ANSWERS * usual_s)
    return server.looked_at < silent_from <= now  # a look in the pause before has seen nothing of it


def is_dying_or_not(server: Server, now: float) -> bool:
    """Whether a look would show by now if the server's latest plain error was its engine's last word."""
    doubted_at = server.doubted_at
    return doubted_at is not None and server.looked_at < doubted_at + DYING_S <= now
