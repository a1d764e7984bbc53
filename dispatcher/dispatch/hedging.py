"""Copies of the oldest requests on servers that stand idle, once the queue has nothing more to give.

The end of a job is as late as its slowest request. A copy is made where it can be expected to end first: at a
server that answers faster, or where the request is so old that something may be wrong with its connection.

What is wrong may be the request: one that ends or hangs servers is not to meet another by way of a copy. So
suspects are never copied, nor is what waits at a server that has stopped getting on, which is for the pool to
judge; and of those that have waited for too long each idle server gets one at a time.
"""

import heapq
from collections.abc import Iterator, Mapping
from itertools import islice

from dispatcher.config import DispatchSettings
from dispatcher.dispatch.attempt import Attempt
from dispatcher.model import ServerId
from dispatcher.pool.pool import Pool
from dispatcher.pool.server import Server

IDLE_SHARE = 0.5
"""A server of whose permits so many are free stands idle: a copy there holds up little else."""
GAIN = 0.8
"""A copy is to need at most this share of the time that the request is expected to go on for."""
OVERDUE = 4.0
"""Times the usual age of an answer at which a request is copied to a server that is no faster."""
OVERDUE_S_MIN = 2.0
SCANNED_MAX = 2000
"""Open requests that are looked at in one go: a fleet of a thousand servers has a quarter of a million."""
TRIED_MAX = 8
"""Idle servers that are tried for one request."""

Open = Mapping[ServerId, Mapping[Attempt, None]]


class Hedging:
    """Decides which open requests are to be copied, and where. No clock."""

    def __init__(self, pool: Pool, settings: DispatchSettings) -> None:
        self.dry = False
        """Whether the queue had nothing more to give when it was last asked."""
        self._pool = pool
        self._settings = settings
        self._hosts: set[ServerId] = set()
        """Servers that hold a copy."""

    def copies(self, open_: Open, now: float) -> Iterator[tuple[Attempt, Server]]:
        """Attempts with the server to copy each to, the oldest first. Take the permit before the next one."""
        if not (self._settings.hedge and self.dry):
            return
        idle = [(-server.free_share(now), server.spec.id) for server in self._idle(now)]
        heapq.heapify(idle)
        self._hosts = {id_ for id_, open_there in open_.items() if any(each.is_copy for each in open_there)}
        in_order_of_sending = [list(attempts) for attempts in open_.values()] if idle else []
        oldest_first = heapq.merge(*in_order_of_sending, key=lambda attempt: attempt.sent_at)
        for attempt in islice(oldest_first, SCANNED_MAX):
            if self._may_be_copied(attempt, now) and (server := self._taken(idle, attempt, now)) is not None:
                yield attempt, server
                self._hosts.add(server.spec.id)
                if _stands_idle(server, now):
                    heapq.heappush(idle, (-server.free_share(now), server.spec.id))

    def _idle(self, now: float) -> list[Server]:
        return [server for server in self._pool.active() if _stands_idle(server, now)]

    def _may_be_copied(self, attempt: Attempt, now: float) -> bool:
        """One copy in its life, and only while neither of the two can be the last attempt that it has."""
        item, settings = attempt.item, self._settings
        attempts_left = item.lease.job.max_attempts - item.charged
        resends_left = settings.free_resends_max - item.resends
        can_lose_both = attempts_left >= 2 and resends_left >= 2  # noqa: PLR2004  # the attempt and its copy
        unfit = item.hedged or item.done or item.suspect or attempt.given_up
        return can_lose_both and not unfit and _gets_on(attempt, now)

    def _taken(self, idle: list[tuple[float, ServerId]], attempt: Attempt, now: float) -> Server | None:
        """Take the idlest server for which a copy is worth it off the heap."""
        passed: list[tuple[float, ServerId]] = []
        found = None
        while idle and found is None and len(passed) < TRIED_MAX:
            entry = heapq.heappop(idle)
            server = self._pool.servers[entry[1]]
            if _fits(attempt, server) and self._is_worth_it(attempt, server, now):
                found = server
            else:
                passed.append(entry)
        for entry in passed:
            heapq.heappush(idle, entry)
        return found

    def _is_worth_it(self, attempt: Attempt, server: Server, now: float) -> bool:
        age_s, here_s, there_s = now - attempt.sent_at, attempt.server.answer_s, server.answer_s
        assert there_s is not None, "it has proved itself by an answer"
        if here_s is None:  # it has answered nothing
            here_s = there_s
        overdue = age_s >= max(OVERDUE_S_MIN, OVERDUE * here_s) and server.spec.id not in self._hosts
        return overdue or _ends_sooner(age_s, here_s, there_s)


def _gets_on(attempt: Attempt, now: float) -> bool:
    """Whether the server has worked on for the better part of the time that it has had the request.

    One that the request has stopped did so at its beginning.
    """
    return attempt.server.progress_at - attempt.sent_at >= (now - attempt.sent_at) / 2


def _stands_idle(server: Server, now: float) -> bool:
    well = server.proven and not server.doubts
    return well and server.permits_for_jobs(now) > 0 and server.free_share(now) >= IDLE_SHARE


def _fits(attempt: Attempt, server: Server) -> bool:
    item = attempt.item
    elsewhere = server is not attempt.server and not item.avoids(server.spec.id)
    return elsewhere and server.serves(item.request.model)


def _ends_sooner(age_s: float, here_s: float, there_s: float) -> bool:
    """Whether a copy, which begins at the first token, can be expected to end well before the attempt.

    A request younger than an answer usually is should end when that age is reached; an older one is expected
    to go on for as long as it has. The servers' usual times say how fast the one is beside the other.
    """
    left_s = max(here_s - age_s, age_s)
    return (age_s + left_s) * there_s / here_s <= GAIN * left_s
