"""Which requests may be what kills servers, and how many of them run where."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from dispatcher.dispatch.attempt import Attempt
from dispatcher.dispatch.backlog import Backlog, Room
from dispatcher.dispatch.blame import Blame, Suspicion
from dispatcher.dispatch.casualties import Casualties, Fallen
from dispatcher.dispatch.item import Item
from dispatcher.dispatch.neighbours import Neighbours
from dispatcher.dispatch.outcomes import poisoned
from dispatcher.model import ErrorCode, Grudge, Judgement, Lease, Outcome, ServerId, Verdict
from dispatcher.pool.effects import Loss
from dispatcher.pool.pool import Pool
from dispatcher.pool.server import Server

SUSPECT_PAUSE_S = 1.0
"""A request whose attempt broke, or met an error of the server's, waits this long for the fate of the server
to be known: it decides whether the request is a suspect, and whether the attempt is charged at all. Sent at
once, it could end the next server before it is known what it was to the first; and where servers go down
together, preempted say, it would be with the next of them, which looks as if it had done it. As long, the
server is given no other suspect: were there two when it goes down, it would prove nothing."""
SUSPECTS_ONLY_S = 30.0
"""Once nothing but suspects has been ready for so long, servers stand idle for their sake, and they go out in
groups of the root of their number. A third death, should it come to that, costs less than such an end."""


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
class Lost:
    """A server that is lost, how, and the attempts that were running there."""

    server: Server
    loss: Loss
    running: Collection[Attempt]


class Quarantine:
    """Keeps suspects apart, and finds out which of them is poison. Plain state; told the time."""

    def __init__(self, pool: Pool, backlog: Backlog, now: float) -> None:
        self.neighbours = Neighbours()
        self._pool = pool
        self._backlog = backlog
        self._blame = Blame(pool.settings.deaths_max)
        self._casualties = Casualties(self._blame)
        self._at: Counter[ServerId] = Counter()
        """Suspects at each server that has any."""
        self._lone_at: set[ServerId] = set()
        self._company_max = 1
        self._closed_until: dict[ServerId, float] = {}
        """Servers that are given no suspect, as one has just met an error there."""
        self._looked_at = now
        self._idle_since = now
        """When a server was last out of work for another reason than that suspects run apart."""

    @property
    def suspects_at(self) -> frozenset[ServerId]:
        """The servers that hold a suspect."""
        return frozenset(self._at)

    def heard(self, theirs: Iterable[ServerId], now: float) -> None:
        """Other processes have suspects at these servers, and at no others."""
        self.neighbours.heard(theirs, self._at.keys(), now)

    def look(self, servers: int, now: float) -> None:
        """Take stock of the time that so many servers have served, and of what stands idle."""
        self.neighbours.look(self._at.keys(), now)
        passed_s, self._looked_at = now - self._looked_at, now
        self._blame.served(passed_s * servers)
        self._casualties.keep(self._pool.servers.__contains__)
        self._closed_until = {server: until for server, until in self._closed_until.items() if now < until}
        waiting = self._backlog.suspects_only()
        if not servers:
            self._idle_since += passed_s  # nothing stands idle for their sake while all are away
        elif not waiting:
            self._idle_since = now
        idle = now - self._idle_since >= SUSPECTS_ONLY_S
        self._company_max = max(self._blame.company_max, math.isqrt(waiting) if idle else 1)

    def room(self, server: Server, now: float) -> Room:
        """What this server may be given, where suspects are concerned."""
        if not self.neighbours.admit(server.spec.id, now):
            return Room.NONE
        if now < self._closed_until.get(server.spec.id, now):
            return Room.NONE
        held = self._at.get(server.spec.id, 0)
        if held == 0:
            return Room.EMPTY
        full = held >= self._company_max or server.spec.id in self._lone_at
        return Room.NONE if full else Room.COMPANY

    def took(self, attempt: Attempt) -> None:
        """An attempt began."""
        if attempt.suspect:
            self._at[attempt.server.spec.id] += 1
        if attempt.lone:
            self._lone_at.add(attempt.server.spec.id)

    def _doubt(self, copy: Attempt | None) -> None:
        """The other attempt of a request that may be a suspect now: its server is given no other suspect."""
        if copy is not None and not copy.suspect:
            copy.suspect = True
            self._at[copy.server.spec.id] += 1

    def gave_back(self, attempt: Attempt) -> None:
        """An attempt's request is no longer at its server."""
        server = attempt.server.spec.id
        if attempt.lone:
            self._lone_at.discard(server)
        if attempt.suspect:
            self._at[server] -= 1
            if not self._at[server]:  # servers come and go
                del self._at[server]

    # What ends mean

    def noted(self, attempt: Attempt, judgement: Judgement, now: float) -> None:
        """An attempt ended in this way, and its request has no outcome yet."""
        if attempt.given_up is not None or attempt.of_another_life:
            return
        server = attempt.server.spec.id
        fallen = Fallen(attempt.item, now - attempt.sent_at, now, may_be_last_words(judgement))
        if fallen.item.running and (judgement.broken or fallen.last_words):
            self._doubt(attempt.twin)
        if judgement.broken:
            self._casualties.broke(server, fallen)
        elif judgement.verdict is Verdict.DOUBTFUL:
            self._casualties.charged(server, fallen)
            if attempt.suspect:
                self._closed_until[server] = now + SUSPECT_PAUSE_S

    def answered(self, attempt: Attempt) -> None:
        """The attempt was answered well."""
        server = attempt.server.spec.id
        if attempt.sent_at > self._closed_until.get(server, math.inf) - SUSPECT_PAUSE_S:
            del self._closed_until[server]
        self._casualties.answered(server, attempt.sent_at)

    def ended(self, item: Item) -> None:
        """The request has its outcome."""
        self._casualties.ended(item)

    def dropped(self, items: Iterable[Item]) -> None:
        """The leases of these requests were lost."""
        for item in items:
            self._casualties.dropped(item)

    def remembered(self, item: Item, grudge: Grudge) -> None:
        """An earlier run held this against the request."""
        item.suspicion = Suspicion(grudge.odds, grudge.deaths)

    def spared(self, server: Server) -> None:
        """A suspect server lives: what broke there was a connection."""
        self._casualties.lives(server.spec.id)
        self._backlog.sort_again()

    def lost(self, lost: Lost, is_open: Callable[[Item], bool], now: float) -> list[Convicted | Suspected]:
        """A server is lost, with what was running there: find out who may have been the cause.

        Returns the requests that are convicted of it, with their outcomes, and those that are suspected. One
        that is convicted and still open somewhere gets its outcome when that attempt ends.
        """
        running = [attempt for attempt in lost.running if not attempt.of_another_life]
        fallen = [Fallen(attempt.item, self._exposure_s(attempt, lost.loss, now), now) for attempt in running]
        casualties = self._casualties.died(lost.server.spec.id, fallen, lost.loss, now)
        for attempt in running:
            attempt.judged = bool(casualties)
            if attempt.item.suspect and attempt.item.running > 1:
                self._doubt(attempt.twin)
        suspects = [item for item in casualties if item.suspicion is not None]
        found = [self._found(item, lost.server, is_open) for item in suspects]
        self._backlog.sort_again()
        return found

    def _exposure_s(self, attempt: Attempt, loss: Loss, now: float) -> float:
        """Seconds in which the server, had it died of itself, would have taken the request with it.

        One that hangs did so about when it was last seen to get on, which is as exact as it is scraped.
        """
        if loss is not Loss.HUNG:
            return now - attempt.sent_at
        until = max(attempt.sent_at, attempt.server.progress_at)
        return min(now - attempt.sent_at, until - attempt.sent_at + self._pool.settings.scrape_interval_s)

    def _found(self, item: Item, server: Server, is_open: Callable[[Item], bool]) -> Convicted | Suspected:
        assert item.suspicion is not None, "nothing speaks against it"
        if not item.poison or is_open(item):
            grudge = Grudge(item.suspicion.deaths, item.suspicion.odds)
            return Suspected(item.lease, item.request.index, grudge)
        self._backlog.discard(lambda each: each is item)
        outcome = poisoned(item, server)
        self._casualties.ended(item)
        return Convicted(item.lease, outcome)


def may_be_last_words(judgement: Judgement) -> bool:
    """Older servers answer a plain 500 when their engine dies (VLLM's own words for it are `broken`)."""
    return judgement.verdict is Verdict.DOUBTFUL and judgement.code is ErrorCode.SERVER_ERROR
