"""One job as this process keeps it in memory, beside its row in the queue."""

import asyncio
from dataclasses import dataclass, field

from dispatcher.jobs.details import Details
from dispatcher.jobs.life import Stage
from dispatcher.model import Job, JobId
from dispatcher.queue.records import JobRecord


@dataclass(slots=True, eq=False)
class Kept:
    """Changed under its lock only, so that what is in memory and what is in the queue stay the same."""

    job: Job
    details: Details
    created_at: float
    """Seconds since the epoch."""
    weight: float = 1.0
    shards: int = 0
    requests: int = 0
    obstacle: str | None = None
    """Why it does not get on just now: a full disk, say."""
    busy_at: float | None = None
    """When it last had requests in flight; by the monotonic clock."""
    untouched: bool = False
    """Whether it cannot have shards yet, as nobody has begun to read its input."""
    driven: bool = False
    """Whether a task takes it through its life just now: never two of them."""
    released: bool = False
    """Whether its journals and its input are gone, for nobody can want them any more."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set where its keeper is to look at it."""

    @property
    def id(self) -> JobId:
        """Its name, in the API as well."""
        return self.job.id

    @property
    def stage(self) -> Stage:
        """Where it is."""
        return self.details.stage

    def counted(self, record: JobRecord) -> None:
        """Take over what the queue knows of its size."""
        self.shards, self.requests = record.shards, record.requests


def kept_of(record: JobRecord, details: Details) -> Kept:
    """A job that an earlier process has kept."""
    kept = Kept(record.job, details, record.created_at, record.weight)
    kept.counted(record)
    return kept
