"""Whose turn it is among the jobs in hand: stride scheduling, by priority and weight. No clock.

Each job has a pass, which advances by 1 / weight with every fresh request taken; the least pass is next
(Waldspurger and Weihl, "Stride Scheduling", 1995). Passes are compared within one priority only.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from dispatcher.model import Job, JobId

SHORT = 16
"""Fresh requests of a job at which the queue is asked for more, be the window full: so long it may take."""
ASKED = 64
"""Requests that are asked for then: one shard, or some where they are small."""
JOBS_MAX = 32
"""Jobs of which something is in hand beside what the window has room for; more wait for room."""
CATCH_UP = 64
"""Requests by which a job may get ahead of the others after it could not be sent: it was at its limit, or its
model had no server. Else it would go before all others for as long as that was."""

Rank = tuple[int, float]


@dataclass(slots=True)
class _Share:
    job: Job
    passed: float
    ready: int = 0
    """Its fresh requests in hand. A job that has none is kept while it has had more than its share."""


class Shares:
    """The jobs that have fresh requests in hand, how many, and whose turn it is."""

    def __init__(self) -> None:
        self.asking = False
        """Whether the queue may have shards of a job of which too little is ready in hand."""
        self._shares: dict[JobId, _Share] = {}
        self._reached: dict[int, float] = {}
        """How far the passes of a priority have come: where those begin that come in hand."""

    def rank(self, job: JobId) -> Rank:
        """Of jobs with fresh requests, the least goes first."""
        share = self._shares[job]
        return -share.job.priority, share.passed

    def came(self, job: Job) -> None:
        """A fresh request of this job is in hand. The priority and weight of its latest lease hold."""
        share = self._shares.get(job.id)
        if share is None or not share.ready:
            share = self._enter(job)
        elif share.job is not job:
            self._change(share, job)
        share.ready += 1

    def took(self, job: JobId) -> None:
        """It was this job's turn: one of its fresh requests is to be sent."""
        share = self._shares[job]
        share.ready -= 1
        if len(self._shares) > 1:
            self._advance(share)
            if share.ready in (SHORT, 0):  # at SHORT, one with a limit may have plenty
                self.asking = self.asking or self._beside(share.job) <= JOBS_MAX
        elif not share.ready:
            del self._shares[job]

    def dropped(self, job: JobId, count: int) -> None:
        """So many of its fresh requests are in hand no more, and were not sent."""
        if count:
            self._shares[job].ready -= count

    # Asking the queue

    def expect(self, job: Job) -> None:
        """The queue may have shards of this job, whose priority and weight are these from now on."""
        share = self._shares.get(job.id)
        if share is not None:
            self._change(share, job)
        enough = share is not None and share.ready > SHORT
        if not enough and self._beside(job) < JOBS_MAX:
            self.asking = True

    def asked(self, *, found: bool) -> None:
        """The queue has answered: once it has nothing, it is not asked again until there is news."""
        self.asking = self.asking or (found and len(self._in_hand()) < JOBS_MAX)

    def ample(self) -> AbstractSet[JobId]:
        """Jobs of which enough is ready in hand."""
        return {share.job.id for share in self._in_hand() if share.ready > SHORT}

    def _beside(self, job: Job) -> int:
        """How many jobs in hand do not have to wait for this one."""
        return sum(other.job.priority >= job.priority for other in self._in_hand())

    def _in_hand(self) -> list[_Share]:
        return [share for share in self._shares.values() if share.ready]

    # Passes

    def _enter(self, job: Job) -> _Share:
        """The share of a job that comes in hand: it begins where the others are, or where it has got to."""
        before = self._shares.pop(job.id, None)
        self._forget()
        reached = self._reached.get(job.priority)
        share = self._shares[job.id] = _Share(job, reached or 0.0)
        if reached is not None and before is not None and before.job.priority == job.priority:
            share.passed = max(reached, before.passed)
        return share

    def _change(self, share: _Share, job: Job) -> None:
        if share.job.priority != job.priority:
            share.passed = self._reached.get(job.priority, 0.0)
        share.job = job

    def _advance(self, share: _Share) -> None:
        priority, weight = share.job.priority, share.job.weight
        reached = self._reached.get(priority, 0.0)
        begun = max(share.passed, reached - CATCH_UP / weight)
        self._reached[priority] = max(begun, reached)
        share.passed = begun + 1 / weight

    def _forget(self) -> None:
        """Jobs come and go: one without requests is kept for as long as it has had more than the others."""
        present = {share.job.priority for share in self._in_hand()}
        self._shares = {
            id_: share
            for id_, share in self._shares.items()
            if share.ready
            or (share.job.priority in present and share.passed > self._reached.get(share.job.priority, 0.0))
        }
        self._reached = {priority: self._reached[priority] for priority in present & self._reached.keys()}
