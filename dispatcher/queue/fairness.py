"""Whose turn it is: which job the next leased shard comes from. Pure decisions, for every queue."""

from collections.abc import Iterable
from dataclasses import dataclass

from dispatcher.model import JobId


@dataclass(frozen=True, slots=True)
class Share:
    """One job's part in the queue: what it is entitled to, and what it has."""

    job_id: JobId
    leased: int
    """Requests of the job that are leased now, to any node."""
    created_at: float
    priority: int = 0
    """A job is served before all jobs of a lower one."""
    weight: float = 1.0
    """Among jobs of equal priority, leased requests are kept proportional to this."""


class Turns:
    """The order in which jobs give shards until `want` requests are leased.

    The job with the highest priority comes first; among equals the one with the fewest leased requests for
    its weight, then the older one.
    """

    def __init__(self, shares: Iterable[Share], want: int) -> None:
        self._shares = {share.job_id: share for share in shares}
        self._leased = {share.job_id: share.leased for share in self._shares.values()}
        self._want = want

    def next(self) -> JobId | None:
        """The job to take one shard from; None when enough is leased, or no job has any more."""
        if self._want <= 0 or not self._shares:
            return None
        return min(self._shares, key=self._rank)

    def took(self, job_id: JobId, requests: int) -> None:
        """One shard was taken. A shard without requests counts as one: it costs a turn as well."""
        self._leased[job_id] += max(1, requests)
        self._want -= max(1, requests)

    def exhausted(self, job_id: JobId) -> None:
        """The job has no free shard."""
        del self._shares[job_id]

    def _rank(self, job_id: JobId) -> tuple[int, float, float, JobId]:
        share = self._shares[job_id]
        return -share.priority, self._leased[job_id] / share.weight, share.created_at, job_id
