"""The deciding half of a node: which request goes to which server, and what becomes of it afterwards.

Nothing here awaits. The node feeds it leases, ended attempts and durable outcomes, and carries out what it
answers.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from dispatcher.config import DispatchSettings
from dispatcher.dispatch.backlog import Backlog
from dispatcher.dispatch.blame import Blame, Suspicion
from dispatcher.dispatch.casualties import Casualties, Fallen
from dispatcher.dispatch.ceiling import Ceiling
from dispatcher.dispatch.item import Item
from dispatcher.dispatch.pace import Pace
from dispatcher.dispatch.retry import Again, Fail, after_fault
from dispatcher.dispatch.shards import ShardInHand, ShardsInHand
from dispatcher.model import (
    Break,
    BreakKind,
    Ending,
    ErrorCode,
    Grudge,
    Judgement,
    Lease,
    Outcome,
    Provenance,
    Request,
    ServerId,
    Verdict,
)
from dispatcher.pool.pool import AttemptEnd, Effect, Loss, Pool
from dispatcher.pool.server import Server
from dispatcher.pool.states import State
from dispatcher.ports import Judge, Replay
from dispatcher.telemetry.metrics import Metrics

WINDOW_FACTOR = 2
"""Requests kept in hand, ready or in flight, as a multiple of the servers' permits.

More where requests end so fast that `Pace` asks for it."""
WINDOW_MIN = 512
WINDOW_BYTES_MAX = 256 * 2**20
"""Bodies that wait to be sent; past this nothing more is leased while anything is ready."""
SUSPECT_PAUSE_S = 1.0
"""A request whose attempt broke waits this long for the fate of its server to be known: it decides whether
the request is a suspect, and a refused connection is found out at once."""
UNRECORDED_MAX = 16_384
UNRECORDED_BYTES_MAX = 256 * 2**20
"""Outcomes on their way to the disk; past either nothing is sent: it could not be recorded."""


class Attempt:
    """One sending of a request to a server."""

    __slots__ = ("begun", "given_up", "item", "sent_at", "server", "suspect")

    def __init__(self, item: Item, server: Server, sent_at: float) -> None:
        self.item = item
        self.server = server
        self.sent_at = sent_at
        self.suspect = item.suspect
        """Whether the request was a suspect when it was sent."""
        self.begun = False
        """Whether its task has run: it is created in one turn of the loop and runs in the next."""
        self.given_up: str | None = None
        """Why we closed it ourselves, if we did."""


@dataclass(frozen=True, slots=True)
class Convicted:
    """A request that is poison, and its outcome."""

    lease: Lease
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Suspected:
    """A request that may be poison, and what a later run should know."""

    lease: Lease
    index: int
    grudge: Grudge


@dataclass(frozen=True, slots=True)
class Ended:
    """What an attempt's end leads to: the request's outcome, if it has one now, and the pool's effects."""

    outcome: Outcome | None
    effects: Sequence[Effect]


class Desk:
    """The requests and shards in hand, and the rules that move them."""

    def __init__(
        self,
        pool: Pool,
        judge: Judge,
        settings: DispatchSettings,
        ceiling: Ceiling,
        metrics: Metrics,
        clock_now: Callable[[], float],
    ) -> None:
        self.shards = ShardsInHand()
        self.backlog = Backlog()
        self.ceiling = ceiling
        self.open: dict[ServerId, dict[Attempt, None]] = {}
        """In order of sending: a set's order, and with it the order of resends, would differ from run to run."""
        self.in_flight = 0
        self.unrecorded = 0
        self.closed = False
        """Whether the node drains: nothing more is sent."""
        self._unrecorded_bytes = 0
        self._pool = pool
        self._judge = judge
        self._settings = settings
        self._metrics = metrics
        self._now = clock_now
        self._order = 0
        self._roomy: dict[ServerId, Server] = {}
        self._window = WINDOW_MIN
        self._pace = Pace(clock_now())
        self._blame = Blame(pool.settings.deaths_max)
        self._casualties = Casualties(self._blame)
        self._suspects_at: Counter[ServerId] = Counter()
        self._looked_at = clock_now()

    # Shards

    def room(self) -> int:
        """How many more requests to lease now; 0 while the window is well filled."""
        window, held = self._window, len(self.backlog) + self.in_flight
        full = self.backlog.body_bytes >= WINDOW_BYTES_MAX or self._recording_is_behind()
        return 0 if self.closed or full or held > window * 3 // 4 else window - held

    def admit(self, lease: Lease, requests: Sequence[Request], replay: Replay) -> ShardInHand:
        """Take a leased shard in hand, less what an earlier run has finished."""
        fresh = [request for request in requests if request.index not in replay.finished]
        shard = ShardInHand(lease, len(fresh), replay.tally)
        self.shards.add(shard)
        self.backlog.extend([self._item(request, lease, replay) for request in fresh])
        return shard

    def _item(self, request: Request, lease: Lease, replay: Replay) -> Item:
        item = Item(request, lease, self._order)
        self._order += 1
        if replay.grudges and (grudge := replay.grudges.get(request.index)) is not None:
            item.suspicion = Suspicion(grudge.odds, grudge.deaths)
        return item

    def recorded(self, lease: Lease, count: int) -> tuple[ShardInHand | None, list[Outcome]]:
        """Outcomes have become durable: the shard, if still ours, and what they were."""
        shard = self.shards.get(lease)
        if shard is None:
            return None, []
        outcomes = shard.recorded(count)
        self.unrecorded -= count
        self._unrecorded_bytes -= sum(len(outcome.body or b"") for outcome in outcomes)
        return shard, outcomes

    def drop(self, leases: Collection[Lease]) -> list[Attempt]:
        """These leases were lost: forget their requests, and say which attempts to close.

        All at once, as it goes through everything in hand: a machine that slept loses every lease it had.
        """
        shards = [shard for lease in leases if (shard := self.shards.get(lease)) is not None]
        for shard in shards:
            self.recorded(shard.lease, shard.unrecorded)
            self.shards.remove(shard.lease)
        lost = {id(shard.lease) for shard in shards}
        self.backlog.discard(lambda item: id(item.lease) in lost)
        return [attempt for attempt in self.open_attempts() if id(attempt.item.lease) in lost]

    def open_attempts(self) -> list[Attempt]:
        """Every attempt that holds a permit."""
        return [attempt for attempts in self.open.values() for attempt in attempts]

    def unserved(self) -> set[str | None]:
        """The models that requests wait for and no server in rotation serves; None is any model."""
        return {model for model in self.backlog.models() if not self._pool.can_serve(model)}

    def servable(self, unserved: set[str | None]) -> bool:
        """Whether requests wait that some server in rotation could take."""
        return bool(self.backlog.models() - unserved)

    # Assignment

    def look_everywhere(self) -> None:
        """Permits may have come up anywhere: a server was admitted, a limit grew, a pause ended."""
        self._roomy = {server.spec.id: server for server in self._pool.active()}
        now = self._now()
        self._blame.served((now - self._looked_at) * len(self._roomy))
        self._looked_at = now
        self._pace.look(now)
        self._window = max(WINDOW_MIN, WINDOW_FACTOR * self._pool.permits_total(now), self._pace.ahead)

    def assign(self) -> Iterator[Attempt]:
        """Pair ready requests with free permits: the largest free share first. Takes the permits."""
        now = self._now()
        self.backlog.wake(now)
        if not (self.backlog.ready() and self._may_send()):
            return
        shares = [(-server.free_share(now), server.spec.id) for server in self._with_permits(now)]
        heapq.heapify(shares)
        while shares and self.backlog.ready() and self._may_send():
            server = self._roomy[shares[0][1]]
            item = self.backlog.take(server, self._has_elsewhere, suspects=self._takes_suspect(server))
            if item is None:
                heapq.heappop(shares)
                continue
            yield self._begin(item, server, now)
            if server.permits_free(now) > 0:
                heapq.heapreplace(shares, (-server.free_share(now), server.spec.id))
            else:
                heapq.heappop(shares)

    def _with_permits(self, now: float) -> list[Server]:
        self._roomy = {id_: server for id_, server in self._roomy.items() if server.permits_free(now) > 0}
        return list(self._roomy.values())

    def _may_send(self) -> bool:
        return not self.closed and self.in_flight < self.ceiling.value and not self._recording_is_behind()

    def _recording_is_behind(self) -> bool:
        return self.unrecorded >= UNRECORDED_MAX or self._unrecorded_bytes >= UNRECORDED_BYTES_MAX

    def _takes_suspect(self, server: Server) -> bool:
        return self._suspects_at[server.spec.id] < self._blame.company_max

    def _has_elsewhere(self, item: Item) -> bool:
        return any(
            server.serves(item.request.model) and server.spec.id not in item.tried
            for server in self._pool.active()
        )

    def _begin(self, item: Item, server: Server, now: float) -> Attempt:
        item.sends += 1
        attempt = Attempt(item, server, now)
        if attempt.suspect:
            self._suspects_at[server.spec.id] += 1
        server.took(now)
        self.in_flight += 1
        self.open.setdefault(server.spec.id, {})[attempt] = None
        return attempt

    # Ends

    def release(self, attempt: Attempt) -> None:
        """Give the permit back: the request is no longer at the server."""
        server = attempt.server
        server.gave_back()
        self.in_flight -= 1
        self._pace.ended()
        if attempt.suspect:
            self._suspects_at[server.spec.id] -= 1
        del self.open[server.spec.id][attempt]
        if not self.open[server.spec.id]:  # servers come and go
            del self.open[server.spec.id]
        self._roomy[server.spec.id] = server

    def attempt_ended(self, attempt: Attempt, ending: Ending, *, healthy: bool | None) -> Ended:
        """Judge an attempt's end, tell the pool, and decide what becomes of the request."""
        item, server, now = attempt.item, attempt.server, self._now()
        judgement = self._judge(ending, item.request, server.models, healthy=healthy)
        if server.state is not State.GONE:  # else its series would come back, and stay
            self._metrics.attempt_ended(server.spec.id, judgement.verdict, now - attempt.sent_at)
        effects = self._tell_pool(attempt, ending, judgement)
        if judgement.verdict is Verdict.LOCAL_FAULT:
            self.ceiling.local_fault(self.in_flight, now)
        if self.shards.get(item.lease) is None:
            return Ended(None, effects)
        return Ended(self._resolve(attempt, judgement, now), effects)

    def _tell_pool(self, attempt: Attempt, ending: Ending, judgement: Judgement) -> Sequence[Effect]:
        if type(ending) is Break and ending.kind is BreakKind.GIVEN_UP:
            self._pool.attempt_given_up(attempt.server)
            return ()
        item = attempt.item
        end = AttemptEnd(judgement, attempt.sent_at, item.request.model, repeated=bool(item.tried))
        return self._pool.attempt_ended(attempt.server, end)

    def appended(self, lease: Lease, outcome: Outcome) -> None:
        """An outcome was handed to the recorder."""
        shard = self.shards.get(lease)
        assert shard is not None, "an outcome of a shard that is not in hand"
        shard.appended(outcome)
        self.unrecorded += 1
        self._unrecorded_bytes += len(outcome.body or b"")

    def server_lost(self, server: Server, loss: Loss) -> list[Convicted | Suspected]:
        """A server is lost with what is open there: find out who may have been the cause.

        Returns the requests that are convicted of it, with their outcomes, and those that are suspected. One
        that is convicted and still open somewhere gets its outcome when that attempt ends.
        """
        now = self._now()
        running = [Fallen(each.item, now - each.sent_at) for each in self.open.get(server.spec.id, ())]
        casualties = self._casualties.died(server.spec.id, running, loss)
        return [found for item in casualties if (found := self._found(item, server)) is not None]

    def _found(self, item: Item, server: Server) -> Convicted | Suspected | None:
        if item.suspicion is None or self.shards.get(item.lease) is None:
            return None
        if not item.poison:
            grudge = Grudge(item.suspicion.deaths, item.suspicion.odds)
            return Suspected(item.lease, item.request.index, grudge)
        if any(attempt.item is item for attempt in self.open_attempts()):
            return None
        self.backlog.discard(lambda each: each is item)
        return Convicted(item.lease, _poisoned(item, server))

    def server_spared(self, server: Server) -> None:
        """A suspect server lives: what broke there was a connection."""
        self._casualties.lives(server.spec.id)

    def _resolve(self, attempt: Attempt, judgement: Judgement, now: float) -> Outcome | None:
        item = attempt.item
        outcome = self._outcome_of(attempt, judgement, now)
        if outcome is not None:
            self._casualties.ended(item)
        return outcome

    def _outcome_of(self, attempt: Attempt, judgement: Judgement, now: float) -> Outcome | None:
        item = attempt.item
        self._note_casualty(attempt, judgement, now)
        if judgement.verdict is Verdict.SUCCESS:
            return _outcome(attempt, judgement, None, "", now)
        if item.poison:
            return _poisoned(item, attempt.server)
        match after_fault(item, judgement, attempt.server.spec.id, self._settings):
            case Again(delay_s):
                pause_s = max(delay_s, SUSPECT_PAUSE_S) if item.accused_at is not None else delay_s
                self.backlog.put_back(item, now + pause_s, now)
                return None
            case Fail(code, message):
                return _outcome(attempt, judgement, code, message, now)

    def _note_casualty(self, attempt: Attempt, judgement: Judgement, now: float) -> None:
        server, exposure_s = attempt.server.spec.id, now - attempt.sent_at
        if judgement.verdict in (Verdict.SUCCESS, Verdict.REQUEST_FAULT):
            self._casualties.answered(server)
        elif judgement.broken:
            self._casualties.broke(server, attempt.item, exposure_s)
        elif judgement.verdict is Verdict.DOUBTFUL:
            self._casualties.charged(server, attempt.item, exposure_s)


def _outcome(
    attempt: Attempt, judgement: Judgement, code: ErrorCode | None, message: str, now: float
) -> Outcome:
    request, server = attempt.item.request, attempt.server
    return Outcome(
        index=request.index,
        custom_id=request.custom_id,
        code=code,
        message=message,
        status=judgement.status,
        request_id=judgement.request_id,
        body=judgement.body,
        tokens=judgement.tokens,
        provenance=Provenance(
            server=server.spec.id,
            model=request.model,
            server_version=server.version,
            attempts=attempt.item.sends,
            seconds=now - attempt.sent_at,
        ),
    )


def _poisoned(item: Item, server: Server) -> Outcome:
    deaths = item.suspicion.deaths if item.suspicion is not None else 1
    request = item.request
    return Outcome(
        index=request.index,
        custom_id=request.custom_id,
        code=ErrorCode.POISON,
        message=f"{deaths} servers died while they had it, the last {server.spec.id}; it is sent no more",
        provenance=Provenance(server.spec.id, request.model, server.version, item.sends, 0.0),
    )
