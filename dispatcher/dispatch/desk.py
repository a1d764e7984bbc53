"""The deciding half of a node: which request goes to which server, and what becomes of it afterwards.

Nothing here awaits. The node feeds it leases, ended attempts and durable outcomes, and carries out what it
answers.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from dispatcher.config import DispatchSettings
from dispatcher.dispatch.attempt import Attempt
from dispatcher.dispatch.backlog import Backlog
from dispatcher.dispatch.ceiling import Ceiling
from dispatcher.dispatch.fates import Fates
from dispatcher.dispatch.hedging import Hedging
from dispatcher.dispatch.item import Item
from dispatcher.dispatch.pairing import Pairing
from dispatcher.dispatch.quarantine import Convicted, Lost, Quarantine, Suspected
from dispatcher.dispatch.quotas import Quotas
from dispatcher.dispatch.shards import ShardInHand, ShardsInHand
from dispatcher.dispatch.window import WINDOW_BYTES_MAX, Unrecorded, Window
from dispatcher.model import (
    Break,
    BreakKind,
    Ending,
    JobId,
    Judgement,
    Lease,
    Outcome,
    Request,
    ServerId,
)
from dispatcher.pool.effects import AttemptEnd, Effect, Loss
from dispatcher.pool.limits import Portion
from dispatcher.pool.pool import Pool
from dispatcher.pool.server import Server
from dispatcher.pool.states import State
from dispatcher.ports import Judge, Replay, Review
from dispatcher.telemetry.metrics import Metrics

CLOSED_BY_US = (BreakKind.GIVEN_UP, BreakKind.SILENT)


@dataclass(frozen=True, slots=True)
class Ended:
    """What an attempt's end leads to: the request's outcome, if it has one now, and the pool's effects."""

    outcome: Outcome | None
    effects: Sequence[Effect]
    needless: Attempt | None = None
    """The other attempt of the same request, if it is still open."""
    judgement: Judgement | None = None
    """What the end means; None where its request had its outcome already."""


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
        review: Review | None = None,
    ) -> None:
        self.shards = ShardsInHand()
        self.quotas = Quotas()
        self.backlog = Backlog(self.quotas.full)
        self.ceiling = ceiling
        self.open: dict[ServerId, dict[Attempt, None]] = {}
        """In order of sending: a set's order, and with it that of resends, would differ from run to run."""
        self.in_flight = 0
        self._unjudged = 0
        """Attempts in flight, and those whose ending has not been judged yet."""
        self.closed = False
        """Whether the node drains: nothing more is sent."""
        self.first_refusal: Callable[[Server], None] = _nobody
        """Offered each server where a permit came back, before a job may take it."""
        self.excused: Callable[[Server], bool] = _never
        """Whether what ended a server may have been none of these requests."""
        self._pool = pool
        self._judge = judge
        self._metrics = metrics
        self._now = clock_now
        self._order = 0
        self._window = Window(clock_now())
        self._unrecorded = Unrecorded()
        self._hedging = Hedging(pool, settings)
        self._quarantine = Quarantine(pool, self.backlog, clock_now())
        self._pairing = Pairing(pool, self.backlog, self._quarantine)
        self._fates = Fates(
            self.shards, self.backlog, self.quotas, self._quarantine, settings, metrics, review
        )

    # Other processes at the same servers

    def share_servers(self, portion: Portion) -> None:
        """This process is one of several that feed the same servers."""
        self._quarantine.neighbours.portion = portion

    @property
    def suspects_at(self) -> frozenset[ServerId]:
        """The servers that hold requests which may end servers: the others are to know."""
        return self._quarantine.suspects_at

    def hear_of_suspects(self, servers: Iterable[ServerId]) -> None:
        """The others have such requests at these servers, and at no others."""
        self._quarantine.heard(servers, self._now())

    # Shards

    @property
    def unrecorded(self) -> int:
        """Outcomes on their way to the disk."""
        return self._unrecorded.count

    def room(self) -> int:
        """How many more requests to lease now; 0 while the window is well filled."""
        if self.closed or self._unrecorded.too_many:
            return 0
        return self._window.room(self.backlog, self._unjudged - self.quotas.surplus)

    def wants_others(self) -> bool:
        """Whether to ask for shards of jobs of which little is ready in hand, however full the window is."""
        if self.closed or self._unrecorded.too_many or self.backlog.body_bytes >= WINDOW_BYTES_MAX:
            return False
        return self.backlog.shares.asking

    def admit(self, lease: Lease, requests: Sequence[Request], replay: Replay) -> ShardInHand:
        """Take a leased shard in hand, less what an earlier run has finished.

        Requests that are withheld are owed an outcome, and are not for sending.
        """
        fresh = [request for request in requests if request.index not in replay.finished]
        to_send = [request for request in fresh if request.withheld is None]
        shard = ShardInHand(lease, len(fresh), replay.tally)
        self.shards.add(shard)
        self.quotas.admitted(lease.job, len(to_send))
        now = self._now()
        self.backlog.extend([self._item(request, lease, replay, now) for request in to_send])
        return shard

    def _item(self, request: Request, lease: Lease, replay: Replay, now: float) -> Item:
        item = Item(request, lease, self._order, now)
        self._order += 1
        if replay.grudges and (grudge := replay.grudges.get(request.index)) is not None:
            self._quarantine.remembered(item, grudge)
        return item

    def recorded(self, lease: Lease, count: int) -> tuple[ShardInHand | None, list[Outcome]]:
        """Outcomes have become durable: the shard, if still ours, and what they were."""
        shard = self.shards.get(lease)
        if shard is None:
            return None, []
        outcomes = shard.recorded(count)
        self._unrecorded.recorded(outcomes)
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
        attempts = [attempt for attempt in self.open_attempts() if id(attempt.item.lease) in lost]
        dropped = self.backlog.discard(lambda item: id(item.lease) in lost)
        self._fates.forget([*dropped, *{attempt.item: None for attempt in attempts}])
        return attempts

    def withdraw(self, job: JobId, under_way: Iterable[Attempt]) -> None:
        """Send nothing more of this job. Its shards are at rest once these attempts of it have ended."""
        shards = {id(shard.lease): shard for shard in self.shards.of_job(job)}
        for shard in shards.values():
            shard.withdrawn, shard.under_way = True, 0
        for attempt in under_way:
            if id(attempt.item.lease) in shards:
                shards[id(attempt.item.lease)].under_way += 1
        self._fates.forget(self.backlog.discard(lambda item: item.lease.job.id == job))

    def unbegun(self) -> list[ShardInHand]:
        """The shards of which every request that is owed waits to be sent for the first time, in order."""
        fresh = self.backlog.fresh_by_lease()
        return [shard for shard in self.shards if 0 < shard.owed == fresh[id(shard.lease)]]

    def let_go(self, shards: Collection[ShardInHand]) -> None:
        """Send nothing of these unbegun shards: they are at rest."""
        leases = {id(shard.lease) for shard in shards}
        for shard in shards:
            shard.withdrawn = True
        self._fates.forget(self.backlog.discard(lambda item: id(item.lease) in leases))

    def limit(self, job: JobId, limit: int | None) -> None:
        """Another limit of this job, or none, holds from now on."""
        held = sum(shard.owed - shard.unrecorded for shard in self.shards.of_job(job))
        in_flight = sum(attempt.item.lease.job.id == job for attempt in self.open_attempts())
        self.quotas.change(job, limit, held=held, in_flight=in_flight)

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
        now = self._now()
        self._quarantine.look(self._pairing.look(), now)
        self._window.look(self._pool.permits_total(now), now)

    def assign(self) -> Iterator[Attempt]:
        """Pair ready requests with free permits: the largest free share first. Takes the permits."""
        now = self._now()
        self.backlog.wake(now)
        if not (self.backlog.ready() and self._may_send()):
            return
        for item, server in self._pairing.pairs(now, self._may_send):
            yield self._begin(item, server, now)

    def is_hungry(self) -> bool:
        """Whether servers could take more than there is here, and the queue has no more."""
        may_send = self._hedging.dry and self._may_send() and not self.backlog.ready()
        return may_send and self._pool.permits_total(self._now()) > self.in_flight

    def queue_is_dry(self, *, dry: bool) -> None:
        """Whether the queue had nothing to give: what is in hand is then the end of the work."""
        if dry and not self._hedging.dry:
            self.backlog.longest_first()
        self._hedging.dry = dry

    def hedge(self) -> Iterator[Attempt]:
        """Copy old requests to servers that stand idle, once nothing else is left. Takes the permits."""
        if self.backlog.ready():
            return
        now = self._now()
        for original, server in self._hedging.copies(self.open, now):
            if not self._may_send():
                return
            copy = self._begin(original.item, server, now)
            copy.is_copy = original.item.hedged = True
            copy.twin, original.twin = original, copy
            yield copy

    def _may_send(self) -> bool:
        return not self.closed and not self.ceiling.is_reached and not self._unrecorded.too_many

    def _begin(self, item: Item, server: Server, now: float) -> Attempt:
        item.sends += 1
        attempt = Attempt(item, server, now)
        self.quotas.took(item.lease.job.id)
        item.running += 1
        self._unjudged += 1
        self._quarantine.took(attempt)
        server.took(now)
        self.in_flight += 1
        self.ceiling.open += 1
        self.open.setdefault(server.spec.id, {})[attempt] = None
        return attempt

    # Ends

    def release(self, attempt: Attempt) -> None:
        """Give the permit back: the request is no longer at the server."""
        server = attempt.server
        server.gave_back(attempt.sent_at)
        self.in_flight -= 1
        self.ceiling.open -= 1
        self._quarantine.gave_back(attempt)
        self.quotas.gave_back(attempt.item.lease.job.id)
        del self.open[server.spec.id][attempt]
        if not self.open[server.spec.id]:  # servers come and go
            del self.open[server.spec.id]
        self.permit_freed(server)

    def permit_freed(self, server: Server) -> None:
        """There may be a permit for a job at this server."""
        self._pairing.freed(server)

    def attempt_ended(self, attempt: Attempt, ending: Ending, *, healthy: bool | None) -> Ended:
        """Judge an attempt's end, tell the pool, and decide what becomes of the request."""
        item, server, now = attempt.item, attempt.server, self._now()
        item.running -= 1
        self._unjudged -= 1
        shard = self.shards.get(item.lease)
        if shard is not None and shard.withdrawn:
            shard.under_way -= 1
        if item.done:  # its other attempt was first
            self._count_copy(attempt, "lost")
            self._pool.attempt_given_up(server)
            return Ended(None, ())
        judgement = self._judge(ending, attempt.request, server.models, healthy=healthy)
        if server.state is not State.GONE:  # else its series would come back, and stay
            self._metrics.attempt_ended(server.spec.id, judgement.verdict, now - attempt.sent_at)
        effects = self._tell_pool(attempt, ending, judgement)
        if type(ending) is Break and ending.kind is BreakKind.LOCAL:
            self.ceiling.local_fault(now)
        if shard is None:
            return Ended(None, effects, judgement=judgement)
        question = item.request
        outcome = self._fates.resolve(attempt, judgement, now)
        has_moved_on = item.notes is not None and item.request is not question
        if outcome is None and not has_moved_on:
            self._count_copy(attempt, "failed")
            return Ended(None, effects, judgement=judgement)
        self._count_copy(attempt, "won")
        return Ended(outcome, effects, self._needless(attempt), judgement)

    def _count_copy(self, attempt: Attempt, result: str) -> None:
        if attempt.is_copy:
            self._metrics.hedge_ended(result)

    def _needless(self, attempt: Attempt) -> Attempt | None:
        twin = attempt.twin
        is_open = twin is not None and twin in self.open.get(twin.server.spec.id, ())
        return twin if is_open else None

    def _tell_pool(self, attempt: Attempt, ending: Ending, judgement: Judgement) -> Sequence[Effect]:
        if type(ending) is Break and ending.kind in CLOSED_BY_US:
            self._pool.attempt_given_up(attempt.server)
            return ()
        repeated = bool(attempt.item.tried)
        end = AttemptEnd(judgement, attempt.sent_at, attempt.request.model, repeated=repeated)
        return self._pool.attempt_ended(attempt.server, end)

    def appended(self, lease: Lease, outcome: Outcome) -> None:
        """An outcome was handed to the recorder."""
        shard = self.shards.get(lease)
        assert shard is not None, "an outcome of a shard that is not in hand"
        shard.appended(outcome)
        self._window.pace.ended()
        self._unrecorded.appended(outcome)

    def server_lost(self, server: Server, loss: Loss) -> list[Convicted | Suspected]:
        """A server is lost with what is open there: find out who may have been the cause.

        Returns the requests that are convicted of it, with their outcomes, and those that are suspected. One
        that is convicted and still open somewhere gets its outcome when that attempt ends.
        """
        running = [
            attempt
            for attempt in self.open.get(server.spec.id, ())
            if self.shards.get(attempt.item.lease) is not None and not attempt.item.done
        ]
        excused = self.excused(server) or self._quarantine.neighbours.met(server.spec.id, self._now())
        loss = Loss.OTHER if excused else loss
        return self._quarantine.lost(Lost(server, loss, running), _is_running, self._now())

    def server_spared(self, server: Server) -> None:
        """A suspect server lives: what broke there was a connection."""
        self._quarantine.spared(server)


def _nobody(_server: Server) -> None:
    """There are no live requests in a run."""


def _never(_server: Server) -> bool:
    """Nothing but these requests runs there."""
    return False


def _is_running(item: Item) -> bool:
    return item.running > 0
