"""Live requests: who gets which permit, and what the end of an attempt leads to. Nothing here awaits.

They go before jobs: each server has a reserve that only they may use, and a permit that comes back is offered
to those that wait, the oldest first, before a job may take it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import assert_never

from dispatcher.dispatch.casualties import FATE_S
from dispatcher.dispatch.ceiling import LIVE_WEIGHT, Ceiling
from dispatcher.dispatch.journey import may_be_fatal, may_be_the_servers
from dispatcher.dispatch.prospects import Prospect, prospect_of
from dispatcher.dispatch.turns import LiveAttempt, Turns, Waiter
from dispatcher.model import (
    NO_TOKENS,
    Answer,
    Break,
    BreakKind,
    Ending,
    ErrorCode,
    Judgement,
    Request,
    ServerId,
    Tokens,
    Verdict,
)
from dispatcher.pool.effects import AttemptEnd, Effect, GiveUp
from dispatcher.pool.pool import Pool
from dispatcher.pool.server import Server
from dispatcher.pool.states import State
from dispatcher.ports import Judge
from dispatcher.telemetry.metrics import Metrics

WAITING_MAX = 4096
"""Live requests that may wait for a permit. Each holds its body in memory."""
COMPARED_MAX = 8
"""Servers with room that are compared for one request, other ones each time: a fleet may have a thousand, and
the best of a few is nearly as good as the best of all."""
INTERNAL_ERROR = 500


@dataclass(frozen=True, slots=True)
class LiveEnded:
    """What an attempt's end leads to."""

    judgement: Judgement
    again: bool
    """Whether another server may do better."""
    effects: Sequence[Effect]
    lost: bool = False
    """Whether the server may have been ended by the request."""


class LiveDesk:
    """The permits of live requests, taken and waited for. A listener of the monitor.

    `freed` is told of a server that has a permit which no live request wants. The `ceiling` is shared with
    the jobs' desk.
    """

    def __init__(
        self,
        pool: Pool,
        judge: Judge,
        metrics: Metrics,
        clock_now: Callable[[], float],
        freed: Callable[[Server], None],
        ceiling: Ceiling,
    ) -> None:
        self.open: dict[LiveAttempt, None] = {}
        self._pool = pool
        self._judge = judge
        self._metrics = metrics
        self._now = clock_now
        self._freed = freed
        self._ceiling = ceiling
        self._rotation = 0
        self._turns = Turns()
        self._broken_at: dict[ServerId, float] = {}
        """When a server last broke under a request that had failed before."""

    # Permits

    @property
    def waiting(self) -> int:
        """Requests that wait for a permit."""
        return len(self._turns)

    def prospect(self, model: str | None) -> Prospect:
        """Whether there is, or may come, a server for this model."""
        return prospect_of(self._pool, model)

    def take(self, model: str | None, avoided: frozenset[ServerId] = frozenset()) -> LiveAttempt | None:
        """A permit of the server with the largest free share; None where all are taken, or others wait."""
        if self._turns.waits_for(model) or self._ceiling.is_reached:
            return None
        now = self._now()
        best, most, compared = None, 0.0, 0
        for server in self._candidates(model, avoided):
            free = server.permits_free(now)
            if free <= 0:
                continue
            share = free / (free + server.in_flight)
            if share > most:
                best, most = server, share
            compared += 1
            if most == 1.0 or compared == COMPARED_MAX:
                break
        return None if best is None else self._begin(best, model, now)

    def has_elsewhere(self, model: str | None, avoided: frozenset[ServerId], *, room: bool = False) -> bool:
        """Whether another server in rotation has the model; with `room`, a free permit as well."""
        now = self._now()
        return any(not room or server.permits_free(now) > 0 for server in self._candidates(model, avoided))

    def wait(
        self, model: str | None, avoided: frozenset[ServerId], granted: Callable[[], None]
    ) -> Waiter | None:
        """Wait for a permit until `forget`; None where too many wait already.

        A request that has been sent before, and so avoids a server, goes before those that have not.
        """
        return None if len(self._turns) >= WAITING_MAX else self._turns.join(model, avoided, granted)

    def forget(self, waiter: Waiter) -> None:
        """It does not wait any more, and what it may have been granted meanwhile is not wanted."""
        self._turns.leave(waiter)
        if waiter.attempt is not None:
            self.drop(waiter.attempt)

    def permit_freed(self, server: Server) -> None:
        """A permit came back there: offer it."""
        now = self._now()
        while self._turns and server.permits_free(now) > 0 and not self._ceiling.is_reached:
            waiter = self._turns.next_for(server)
            if waiter is None:
                return
            self._turns.leave(waiter)
            waiter.attempt = self._begin(server, waiter.model, now)
            waiter.granted()

    def look_everywhere(self) -> None:
        """Permits may have come up anywhere: limits grow, pauses end, servers come back."""
        if self._turns:
            for server in list(self._pool.active()):
                self.permit_freed(server)

    def _candidates(self, model: str | None, avoided: frozenset[ServerId]) -> Iterator[Server]:
        """Servers in rotation that have the model, from another one on each time: equals take turns."""
        servers = list(self._pool.servers.values())
        self._rotation += 1
        start = self._rotation % max(1, len(servers))
        for server in chain(servers[start:], servers[:start]):
            if server.state is State.ACTIVE and server.serves(model) and server.spec.id not in avoided:
                yield server

    def _begin(self, server: Server, model: str | None, now: float) -> LiveAttempt:
        attempt = LiveAttempt(server, model, now)
        server.took(now)
        self.open[attempt] = None
        self._ceiling.open += LIVE_WEIGHT
        return attempt

    # Ends

    def release(self, attempt: LiveAttempt) -> None:
        """Give the permit back. It is offered to others once it is known what the end says of its server."""
        del self.open[attempt]
        self._ceiling.open -= LIVE_WEIGHT
        attempt.server.gave_back(attempt.sent_at)

    def drop(self, attempt: LiveAttempt) -> None:
        """Give the permit back, of an attempt that says nothing about its server."""
        self.release(attempt)
        self._pool.attempt_given_up(attempt.server)
        self._offer(attempt.server)

    def progressed(self, attempt: LiveAttempt) -> None:
        """Some of an answer came: the server has not stalled."""
        attempt.server.progress_at = self._now()

    def ended(
        self,
        attempt: LiveAttempt,
        ending: Ending,
        request: Request,
        tried: Sequence[ServerId],
        *,
        healthy: bool | None,
    ) -> LiveEnded:
        """Judge how an attempt ended whose permit was given back, and tell the pool.

        `tried` are the servers that it was sent to before this one.
        """
        server = attempt.server
        judgement = self._judge(ending, request, server.models, healthy=healthy)
        if server.state is not State.GONE:  # else its series would come back, and stay
            self._metrics.attempt_ended(server.spec.id, judgement.verdict, self._now() - attempt.sent_at)
        self._metrics.tokens_counted(attempt.model, judgement.tokens)
        if attempt.repeated and judgement.broken:
            self._note_broken(server)
        if isinstance(ending, Break) and ending.kind is BreakKind.LOCAL:
            self._ceiling.local_fault(self._now())
        effects = self._tell_pool(attempt, ending, judgement)
        tried_now = frozenset((*tried, server.spec.id))
        again = self._is_better_elsewhere(attempt.model, ending, judgement, tried_now)
        self._offer(server)
        return LiveEnded(judgement, again, effects, lost=may_be_fatal(ending, judgement))

    def streamed(self, attempt: LiveAttempt, tokens: Tokens = NO_TOKENS) -> LiveEnded:
        """A stream came to its end, with the permit given back. Of what it said, its tokens are known."""
        server = attempt.server
        if server.state is not State.GONE:
            self._metrics.attempt_ended(server.spec.id, Verdict.SUCCESS, self._now() - attempt.sent_at)
        self._metrics.tokens_counted(attempt.model, tokens)
        judgement = Judgement(Verdict.SUCCESS, tokens=tokens)
        end = AttemptEnd(judgement, attempt.sent_at, attempt.model)
        effects = self._pool.attempt_ended(server, end)
        self._offer(server)
        return LiveEnded(judgement, again=False, effects=effects)

    def _offer(self, server: Server) -> None:
        """To a live request that waits, or else to the jobs."""
        self.permit_freed(server)
        self._freed(server)

    def _note_broken(self, server: Server) -> None:
        now = self._now()
        self._broken_at = {id_: at for id_, at in self._broken_at.items() if now - at <= FATE_S}
        self._broken_at[server.spec.id] = now

    def _tell_pool(self, attempt: LiveAttempt, ending: Ending, judgement: Judgement) -> Sequence[Effect]:
        if attempt.given_up is not None or _says_nothing(ending, judgement, attempt.server):
            self._pool.attempt_given_up(attempt.server)
            return ()
        end = AttemptEnd(judgement, attempt.sent_at, attempt.model, repeated=attempt.repeated)
        return self._pool.attempt_ended(attempt.server, end)

    def _is_better_elsewhere(
        self, model: str | None, ending: Ending, judgement: Judgement, tried: frozenset[ServerId]
    ) -> bool:
        match judgement.verdict:
            case Verdict.SUCCESS | Verdict.REQUEST_FAULT | Verdict.LOCAL_FAULT:
                return False
            case Verdict.STALE_CONNECTION | Verdict.SERVER_FAULT | Verdict.STALLED:
                return True
            case Verdict.OVERLOAD:
                return self.has_elsewhere(model, tried, room=True)
            case Verdict.MISMATCH:
                return self.has_elsewhere(model, tried)
            case Verdict.DOUBTFUL:
                return may_be_the_servers(ending, judgement) and self.has_elsewhere(model, tried)
            case _ as never:
                assert_never(never)

    def may_have_ended(self, server: Server) -> bool:
        """Whether a request that had failed elsewhere was at this server when it was lost.

        It may be what ends one server after the other: no row of a job is to be convicted of such a death.
        """
        if self._now() - self._broken_at.get(server.spec.id, -math.inf) <= FATE_S:
            return True
        return any(attempt.repeated and attempt.server is server for attempt in self.open)

    # What the monitor tells

    def give_up(self, effect: GiveUp) -> None:
        """Close what is open at this server; it goes elsewhere where no byte of an answer has gone out."""
        kind = BreakKind.SILENT if effect.silent else BreakKind.GIVEN_UP
        for attempt in [attempt for attempt in self.open if attempt.server is effect.server]:
            if attempt.given_up is None:
                attempt.given_up = Break(kind, effect.reason)
                if attempt.close is not None:
                    attempt.close()

    def spare(self, server: Server) -> None:
        """A suspect lives: nobody was blamed here."""

    def capacity_changed(self) -> None:
        """Permits may have come up, or gone."""
        self.look_everywhere()


def _says_nothing(ending: Ending, judgement: Judgement, server: Server) -> bool:
    """Whether an ending is no evidence: what clients ask for is not to take servers out of rotation.

    Not the unknown 4xx, nor the incomplete 200: a client may ask for either again and again. And not that a
    server without a list lacks a model: anybody may ask it for any name.
    """
    if judgement.verdict is Verdict.DOUBTFUL:
        return isinstance(ending, Answer) and ending.status < INTERNAL_ERROR
    unlisted = server.models is None and judgement.code is ErrorCode.MODEL_NOT_FOUND
    return judgement.verdict is Verdict.MISMATCH and unlisted
