"""Jobs that may have only so many requests in flight from this node."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from dispatcher.model import Job, JobId

PLENTY = 2
"""Times its limit that of such a job is held in hand: more would only take the place of other work."""


@dataclass(slots=True)
class _Quota:
    limit: int
    held: int = 0
    """Requests in hand, in flight or not."""
    in_flight: int = 0

    @property
    def plenty(self) -> bool:
        return self.held >= PLENTY * self.limit

    @property
    def surplus(self) -> int:
        return max(0, self.held - PLENTY * self.limit)


class Quotas:
    """Counts what jobs with a limit have in hand and in flight. Jobs without one cost nothing here."""

    def __init__(self) -> None:
        self._quotas: dict[JobId, _Quota] = {}
        self._full: set[JobId] = set()

    @property
    def full(self) -> AbstractSet[JobId]:
        """Jobs of which nothing more may be sent now."""
        return self._full

    @property
    def in_plenty(self) -> frozenset[JobId]:
        """Jobs of which enough is in hand: nothing more of them is to be leased."""
        return frozenset(job for job, quota in self._quotas.items() if quota.plenty)

    @property
    def surplus(self) -> int:
        """Requests in hand that cannot be sent soon, and take no other's place."""
        return sum(quota.surplus for quota in self._quotas.values())

    def admitted(self, job: Job, count: int) -> None:
        """So many of its requests were taken in hand. The limit of its latest lease holds."""
        quota = self._quotas.get(job.id)
        if job.limit is not None:
            quota = self._quotas.setdefault(job.id, _Quota(job.limit))
            quota.limit = job.limit
        if quota is not None:
            quota.held += count
            self._look(job.id, quota)

    def change(self, job: JobId, limit: int | None, *, held: int, in_flight: int) -> None:
        """Another limit holds from now on, or none, for a job of which so much is in hand and in flight."""
        self._quotas.pop(job, None)
        self._full.discard(job)
        if limit is not None:
            quota = self._quotas[job] = _Quota(limit, held, in_flight)
            self._look(job, quota)

    def ended(self, job: JobId, count: int = 1) -> None:
        """So many of its requests are in hand no more."""
        if (quota := self._quotas.get(job)) is not None:
            quota.held -= count
            self._look(job, quota)

    def took(self, job: JobId) -> None:
        """One of its requests is in flight."""
        if (quota := self._quotas.get(job)) is not None:
            quota.in_flight += 1
            self._look(job, quota)

    def gave_back(self, job: JobId) -> None:
        """One of its requests is in flight no more."""
        if (quota := self._quotas.get(job)) is not None:
            quota.in_flight -= 1
            self._look(job, quota)

    def _look(self, job: JobId, quota: _Quota) -> None:
        if quota.in_flight >= quota.limit:
            self._full.add(job)
        else:
            self._full.discard(job)
        if quota.held <= 0 and quota.in_flight <= 0:  # jobs come and go
            del self._quotas[job]
            self._full.discard(job)
