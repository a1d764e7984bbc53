"""The fleet as a dashboard shows it: of thousands of servers those that need a look, the rest in figures."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from dispatcher.api.members import Member
from dispatcher.api.rates import NO_RATES, Meter, Rates
from dispatcher.api.reasons import KINDS, reason_of
from dispatcher.api.servers import HELD_OUT
from dispatcher.model import ServerId
from dispatcher.pool.moves import IN_SERVICE
from dispatcher.pool.server import Server
from dispatcher.pool.states import Move, State

SERVERS_SHOWN_MAX = 200
MODELS_SHOWN_MAX = 3
TEXT_CHARACTERS_MAX = 300
"""Of a server's own words; the log has them whole."""
URGENCY: Mapping[str, int] = {
    state: rank
    for rank, state in enumerate(
        (
            State.EVICTED,
            State.MISMATCHED,
            State.SUSPECT,
            State.PAUSED,
            State.VERIFYING,
            State.JOINING,
            State.DRAINING,
            HELD_OUT,
            State.ACTIVE,
            State.GONE,
        )
    )
}
"""Which states come first where there is no room for all."""


class ServerCard(msgspec.Struct, frozen=True, gc=False):
    """One server. `_s` are seconds; `limit` is 0 while it gets no requests."""

    id: str
    state: str
    """As in `pool.states.State`, or `drained`."""
    held_out: bool
    """Whether an operator has drained it."""
    in_state_s: float | None
    """None for a drained one: it is not watched."""
    in_flight: int
    limit: int
    rows_per_s: float
    tokens_per_s: float
    succeeded: int
    failed: int
    evictions: int
    evicted_ago_s: float | None
    """Since the last eviction, as far as it is remembered."""
    last_fault_ago_s: float | None
    models: tuple[str, ...] | None
    """Served names, the first few; None where it has no list."""
    version: str | None
    why: str = ""
    """Why it stands where it stands. In the server's own words, or by kind for who may not read those."""
    evicted_for: str = ""
    """The same of its last eviction."""
    last_fault: str = ""
    """In the server's own words; empty for who may not read them."""


class StateCount(msgspec.Struct, frozen=True, gc=False):
    """How many servers are in a state."""

    state: str
    servers: int


class FleetPicture(msgspec.Struct, frozen=True):
    """The fleet at one moment. `states` counts every server, `servers` has those that are shown."""

    states: tuple[StateCount, ...]
    servers: tuple[ServerCard, ...]
    found: int
    """How many servers fit what was asked for, the ones not shown included."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which servers, and what of them."""

    find: str = ""
    """A part of the address."""
    state: str = ""
    """Only those in it; empty: all."""
    texts: bool = True
    """Whether servers' own words are shown: they may quote a request, which is not for every viewer."""


def picture_fleet(
    servers: Iterable[Server], listed: Mapping[ServerId, Member], meter: Meter, now: float, wanted: Wanted
) -> FleetPicture:
    """Every server there is, counted; of those that are wanted the ones shown."""
    watched = {server.spec.id: server for server in servers}
    held_out = {server for server, member in listed.items() if member.held_out}
    states = {server: state.state.value for server, state in watched.items()}
    states.update(dict.fromkeys(held_out - watched.keys(), HELD_OUT))
    found = [
        (URGENCY[state], server)
        for server, state in states.items()
        if wanted.find in server and wanted.state in ("", state)
    ]
    cards = [
        _card(watched[server], meter.of(watched[server]), held_out, now, texts=wanted.texts)
        if server in watched
        else _unwatched(server)
        for _, server in heapq.nsmallest(SERVERS_SHOWN_MAX, found)
    ]
    counts = Counter(states.values())
    by_state = tuple(StateCount(state, counts[state]) for state in URGENCY if counts[state])
    return FleetPicture(by_state, tuple(cards), len(found))


def _card(
    server: Server, rates: Rates, held_out: Collection[ServerId], now: float, *, texts: bool
) -> ServerCard:
    record, eviction = server.record, _last_eviction(server)
    return ServerCard(
        id=server.spec.id,
        state=server.state.value,
        held_out=server.spec.id in held_out,
        in_state_s=round(now - server.machine.since, 1),
        in_flight=server.in_flight,
        limit=server.limit.permits(now) if server.state is State.ACTIVE else 0,
        rows_per_s=round(rates.rows_per_s, 3),
        tokens_per_s=round(rates.tokens_per_s, 1),
        succeeded=record.succeeded,
        failed=record.failed,
        evictions=record.evictions,
        evicted_ago_s=None if eviction is None else round(now - eviction.at, 1),
        last_fault_ago_s=None if record.last_fault_at is None else round(now - record.last_fault_at, 1),
        models=None if server.models is None else tuple(sorted(server.models)[:MODELS_SHOWN_MAX]),
        version=server.version,
        why=reason_of(server, texts=texts)[:TEXT_CHARACTERS_MAX],
        evicted_for="" if eviction is None else _words(eviction, texts=texts)[:TEXT_CHARACTERS_MAX],
        last_fault=record.last_fault[:TEXT_CHARACTERS_MAX] if texts else "",
    )


def _words(move: Move, *, texts: bool) -> str:
    return move.reason if texts else KINDS[move.event]


def _last_eviction(server: Server) -> Move | None:
    if not server.record.evictions:
        return None
    history = reversed(server.machine.history)
    return next((move for move in history if move.after is State.EVICTED and move.before in IN_SERVICE), None)


def _unwatched(server: ServerId) -> ServerCard:
    return ServerCard(
        id=server,
        state=HELD_OUT,
        held_out=True,
        in_state_s=None,
        in_flight=0,
        limit=0,
        rows_per_s=NO_RATES.rows_per_s,
        tokens_per_s=NO_RATES.tokens_per_s,
        succeeded=0,
        failed=0,
        evictions=0,
        evicted_ago_s=None,
        last_fault_ago_s=None,
        models=(),
        version=None,
        why="drained by an operator",
    )
