"""How a server moves from state to state, and when it is looked at next."""

from collections.abc import Callable, Sequence
from random import Random

import structlog

from dispatcher.config import PoolSettings
from dispatcher.pool.effects import Effect, GiveUp, Look, Loss, Spared
from dispatcher.pool.schedule import WELL_AFTER_S, check_delay_s
from dispatcher.pool.server import Server
from dispatcher.pool.states import Event, Move, State
from dispatcher.telemetry.metrics import Metrics

IN_SERVICE = (State.ACTIVE, State.SUSPECT)
OUT_OF_SERVICE = (State.EVICTED, State.PAUSED, State.MISMATCHED)
LAST_WORDS_S = 0.1
"""A new request can be refused by a dead server before the connections to it are seen to break: one socket's
news is read before another's. Where they break, their requests are suspects; where they stay silent, it was
stopped in good order."""


class Moves:
    """Makes every move of every server: what follows from it is counted, logged, planned and returned."""

    def __init__(
        self,
        settings: PoolSettings,
        metrics: Metrics,
        clock_now: Callable[[], float],
        random: Random,
        *,
        log_prompts: bool = False,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._now = clock_now
        self._random = random
        self._log_prompts = log_prompts
        self._log = structlog.get_logger("dispatcher.pool")

    def make(self, server: Server, event: Event, reason: str, plain: str | None = None) -> Sequence[Effect]:
        """Move if the server's state has this move; evidence that comes too late changes nothing.

        `plain` is the reason without a server's words, where it has any.
        """
        if not server.machine.allows(event):
            return ()
        move = server.machine.move(event, reason, self._now(), plain)
        if move.after is State.ACTIVE:
            server.admitted(move.at, spared=move.before is State.SUSPECT)
            server.next_scrape_at = move.at + self._random.uniform(0.0, self._settings.scrape_interval_s)
        if move.before is State.VERIFYING:
            server.alive_since = move.at
        self._count(server, move)
        self.plan(server)
        if move.after is State.SUSPECT:
            server.examine_at, server.next_check_at = server.next_check_at, move.at
        self._metrics.server_state(server.spec.id, move.after.value)
        self._log_move(server, move)
        return _effects(server, move)

    def _count(self, server: Server, move: Move) -> None:
        out = move.before in IN_SERVICE and move.after not in IN_SERVICE
        doubted = move.after is State.SUSPECT and not server.hanging
        useless = doubted and not server.proven  # good to its canary and to nobody else
        server.setbacks += out or useless
        if move.before in IN_SERVICE and move.after is State.EVICTED:
            server.record.evictions += 1
            self._metrics.server_evicted(server.spec.id, move.event.value)
        elif move.after is State.ACTIVE and server.record.evictions and move.before is not State.SUSPECT:
            self._metrics.server_readmitted(server.spec.id)

    def looked(self, server: Server) -> None:
        """Each look at a server that is out lengthens the wait for the next, until it is well again."""
        if server.state in OUT_OF_SERVICE:
            server.setbacks += 1
        self.plan(server)

    def plan(self, server: Server) -> None:
        """Plan the next look at this server."""
        now = self._now()
        if server.state is State.ACTIVE and now - server.machine.since >= WELL_AFTER_S:
            server.setbacks = 0
        if server.state is State.SUSPECT and now < server.examine_at:
            server.next_check_at = server.examine_at
            return
        setbacks = 0 if server.state is State.SUSPECT and server.hanging else server.setbacks
        server.next_check_at = now + check_delay_s(server.state, setbacks, self._settings, self._random)

    def plan_later(self, server: Server) -> None:
        """Plan the next look, which is not to follow this one at once."""
        self.plan(server)
        earliest = self._now() + self._settings.readmit_backoff_min_s
        server.next_check_at = max(server.next_check_at, earliest)

    def _log_move(self, server: Server, move: Move) -> None:
        quiet = move.after is State.VERIFYING or (
            move.before is State.VERIFYING and move.after is State.EVICTED
        )
        loud = move.after in (State.EVICTED, State.MISMATCHED)
        log = self._log.debug if quiet else self._log.warning if loud else self._log.info
        reason = move.reason if self._log_prompts else move.plain
        log(f"server_{move.after}", server=server.spec.id, before=move.before.value, reason=reason)


def _effects(server: Server, move: Move) -> Sequence[Effect]:
    if move.after is State.EVICTED or move.event is Event.RESTARTED:
        after_s = LAST_WORDS_S if move.event is Event.DIED and server.in_flight else 0.0
        return (GiveUp(server, move.reason, _loss(server, move.event), after_s=after_s), Look(server))
    if move.event in (Event.VERIFIED, Event.SLEPT, Event.MISMATCHED):  # only a living one says so
        return (Spared(server), Look(server))
    return (Look(server),)


def _loss(server: Server, event: Event) -> Loss:
    if event in (Event.DIED, Event.RESTARTED):
        return Loss.DEAD
    return Loss.HUNG if server.hanging else Loss.OTHER
